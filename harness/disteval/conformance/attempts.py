"""Holding a backend to one rule: one try, and a second one where the first lost ranks."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from disteval.conformance.bench import DEPENDS, Bench
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
NO_OTHER_RANKS = (
    "something outside of the check may have caused it, and this job can't start other ranks to "
    "try the rule again; run the check without the launcher of this job"
)


def check_rule(rule: Rule, worlds: BackendWorlds, examples: int = 100, seed: int = 0) -> Result:
    """Check a backend against one rule, twice if ranks are lost or late at the first try.

    Such a rule has failed if it fails again. Otherwise it was not judged (``error``).

    Args:
        rule: The rule.
        worlds: The worlds of the backend, which may be lost.
        examples: The number of drawn examples.
        seed: The seed of drawing.
    """
    first, loss = try_rule(rule, worlds, examples, seed)
    if not loss:
        return first
    if not worlds.can_be_lost:
        return first.not_judged(loss, NO_OTHER_RANKS)
    return judged_by(first, loss, try_rule(rule, worlds, examples, seed)[0])


def judged_by(first: Result, loss: str, again: Result) -> Result:
    """Return the result of a rule that lost ranks at the first try and was tried again."""
    if again.outcome != "failed":
        return first.not_judged(loss, _NOT_AGAIN)
    return replace(again, message=f"{again.message}\nfailed twice; the first time: {loss}")


def try_rule(rule: Rule, worlds: BackendWorlds, examples: int, seed: int) -> tuple[Result, str]:
    """Try a rule once, see `check_rule`.

    Returns:
        The result; and the loss in one line, if ranks that were lost or late made the rule fail.
    """
    result = Result.of(rule, worlds.world_size)
    bench, loss = Bench(worlds, examples, seed, together=True), ""
    begin = time.monotonic()
    try:
        _try(rule, bench)
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
        if isinstance(error, LostWorld) and error.may_not_recur:
            loss = first_line(error.what)
    except WorldError as error:  # a world did not start
        if not rule.loses_ranks:
            raise
        result.outcome, result.message = "error", str(error)
    else:
        if not bench.ran:
            result.outcome, result.message = "error", "the rule's check tried no example"
    result.examples, result.seconds = bench.ran, time.monotonic() - begin
    result.observed = "\n".join(bench.observed)
    at_start, worlds.lost_at_start = worlds.lost_at_start, ""
    if at_start and result.outcome == "passed":
        result = result.not_judged(at_start, _NOT_AGAIN)
    _hold_against_declaration(rule, worlds.cls, result)
    return result, loss if result.outcome == "failed" else ""


def _try(rule: Rule, bench: Bench) -> None:
    """Run a check; after a failure, repeat a stochastic one, and look for the smallest example."""
    for _ in range(rule.tries - 1):
        with suppress(BrokenRuleError):
            return rule.check(bench)
    try:
        return rule.check(bench)
    except (BrokenRuleError, LostWorld) as error:
        if not bench.can_try_one_by_one(error):
            raise
        first = error
    bench.together = False
    only_lost = isinstance(first, LostWorld) and first.may_not_recur
    try:
        rule.check(bench)
    except LostWorld as error:
        if not only_lost:
            error.came_after(first.what)
        raise
    if only_lost:
        raise first
    first.what += f"\n{DEPENDS}"
    raise first


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
