"""Trying one rule, and the only way of trying it again: what was in doubt, once, in new ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from disteval.conformance.bench import Bench
from disteval.conformance.causes import Seen, likely_cause, raises
from disteval.conformance.results import Result
from disteval.conformance.rule import BrokenRuleError, LostWorld, NotApplicableError, Rule
from disteval.conformance.world import BackendWorlds
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError
from disteval.world.postmortem import first_line

_NOT_AGAIN = (
    "it did not happen again when the rule was tried on other ranks, so something outside of the "
    "check may have caused it; run the check again"
)
_NO_OTHER_RANKS = (
    "something outside of the check may have caused it, and this job can't start other ranks to "
    "try the rule again; run the check without the launcher of this job"
)


class Try(NamedTuple):
    """One try of a rule.

    Attributes:
        result: Its result.
        doubt: In one line, a failure that something outside may have caused, see
            `disteval.conformance.rule.is_in_doubt`; nothing if the result counts.
    """

    result: Result
    doubt: str = ""


def check_rule(rule: Rule, worlds: BackendWorlds, examples: int = 100, seed: int = 0) -> Result:
    """Check a backend against one rule, twice if a failure is in doubt at the first try.

    Args:
        rule: The rule.
        worlds: The worlds of the backend, which may be lost.
        examples: The number of drawn examples.
        seed: The seed of drawing.
    """

    def again() -> Try:
        worlds.close()
        return try_rule(rule, worlds, examples, seed)

    return settle(try_rule(rule, worlds, examples, seed), again if worlds.can_be_lost else None)


def settle(first: Try, again: Callable[[], Try] | None) -> Result:
    """Return the result of a rule: what was in doubt has to fail again, or else is not judged.

    Args:
        first: The first try.
        again: Tries the rule in new ranks; None if no others can be started.
    """
    if not first.doubt:
        return first.result
    if again is None:
        return first.result.not_judged(first.doubt, _NO_OTHER_RANKS)
    second = again()
    if second.result.outcome != "failed" and not second.doubt:
        return first.result.not_judged(first.doubt, _NOT_AGAIN)
    message = f"{second.result.message}\nfailed twice; the first time: {first.doubt}"
    return replace(second.result, message=message)


def try_rule(rule: Rule, worlds: BackendWorlds, examples: int, seed: int) -> Try:
    """Try a rule once, see `check_rule`.

    Raises:
        WorldError: A world of the backend does not start, and no rank was lost.
    """
    result = Result.of(rule, worlds.world_size)
    bench, doubt = Bench(worlds, examples, seed), ""
    begin = time.monotonic()
    try:
        rule.check(bench)
    except NotApplicableError as reason:
        result.outcome, result.message = "unsupported", str(reason)
    except (BrokenRuleError, LostWorld) as error:
        result.outcome, result.message = "failed", error.what
        result.counterexample = error.counterexample
        result.evidence = error.error.evidence if error.error else []
        seen = Seen(worlds.cls, worlds.world_size, error.error, error.differences, bench.wrong)
        result.cause = likely_cause(seen, rule.cause)
        result.usually = "" if result.cause else rule.usually
        result.cause = result.cause or raises(seen)
        doubt = first_line(error.what) if error.in_doubt else ""
    except WorldError as error:  # a world did not start
        if not (rule.loses_ranks or error.lost):
            raise
        result.outcome, result.message = "error", str(error)
        doubt = first_line(str(error)) if error.lost else ""
    else:
        if not bench.ran:
            result.outcome, result.message = "error", "the rule's check tried no example"
    result.examples, result.seconds = bench.ran, time.monotonic() - begin
    result.observed = "\n".join(bench.observed)
    _hold_against_declaration(rule, worlds.cls, result)
    return Try(result, doubt if result.outcome in ("failed", "error") else "")


def _hold_against_declaration(rule: Rule, cls: type[BaseDistBackend], result: Result) -> None:
    """Let a declared "no" excuse a failure, and turn it into a failure if the rule holds."""
    if rule.capability is None:
        return
    reason = cls.capabilities.why_not(rule.capability)
    if not reason:
        return
    if result.outcome == "failed":
        result.outcome, result.message, result.cause = "unsupported", reason, ""
        result.usually, result.evidence = "", []
    elif (
        result.outcome == "passed" and result.world_size > 1
    ):  # at world size 1 there is no other rank
        result.outcome = "failed"
        result.message = f"{rule.capability} is declared a no ({reason}), but it works"
