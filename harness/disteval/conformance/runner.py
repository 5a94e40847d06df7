"""Running every rule at every world size, and saying what came of it."""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from disteval.conformance import (  # noqa: F401 - they register the rules
    checks,
    copies,
    failures,
    faults,
    sequences,
    template,
)
from disteval.conformance.rules import (
    RULES,
    Bench,
    BrokenRuleError,
    LostWorld,
    NotApplicableError,
    Rule,
)
from disteval.conformance.world import BackendWorlds, JudgedWorld
from disteval.contract import BaseDistBackend, No
from disteval.errors import UsageError, WorldError
from disteval.registry import get_backend_class
from disteval.report.files import SCHEMA_VERSION
from disteval.worlds import World, keep

DEFAULT_WORLD_SIZES = (1, 2, 3, 5)
DEFAULT_TIMEOUT = 20.0


@dataclass
class Result:
    """What came of one rule at one world size.

    Attributes:
        id: The rule's number.
        name: The rule's name.
        sentence: What a backend has to do.
        level: ``required``, ``optional`` or ``stochastic``.
        world_size: The number of ranks.
        outcome: ``passed``, ``failed``, ``unsupported`` (declared, or it does not apply; with the
            reason) or ``error`` (it could not be judged).
        examples: How many examples were tried.
        seconds: How long it took.
        message: What was wrong, or why it was not judged.
        counterexample: The smallest failing example found.
        observed: What the ranks saw, where a passed rule says more than that it passed.
        replay: The command that tries just this again, of a rule that failed.
    """

    id: str
    name: str
    sentence: str
    level: str
    world_size: int
    outcome: str = "passed"
    examples: int = 0
    seconds: float = 0.0
    message: str = ""
    counterexample: str = ""
    observed: str = ""
    replay: str = ""


@dataclass
class Report:
    """What came of a whole check.

    Attributes:
        target: The backend, as it was named.
        seed: Where drawing started.
        examples: Drawn examples a rule.
        timeout: Seconds that one example might take.
        launcher: How ranks were started, where that was asked for.
        rules: Every result, by world size and rule.
        created: When it began, in ISO 8601, UTC.
    """

    target: str
    seed: int
    examples: int
    timeout: float = DEFAULT_TIMEOUT
    launcher: str | None = None
    rules: list[Result] = field(default_factory=list)
    created: str = field(default_factory=lambda: f"{datetime.now(timezone.utc):%FT%TZ}")

    @property
    def verdict(self) -> str:
        """``broken``, ``conformant``, or ``incomplete`` if a rule was not judged or none passed."""
        outcomes = {result.outcome for result in self.rules}
        if "failed" in outcomes:
            return "broken"
        return "conformant" if "passed" in outcomes and "error" not in outcomes else "incomplete"

    @property
    def required_run(self) -> int:
        """How many rules that admit no declaration were judged, over all world sizes."""
        judged = ("passed", "failed")
        return sum(r.level != "optional" and r.outcome in judged for r in self.rules)

    def replay(self, result: Result) -> str:
        """The command that tries one rule at one world size again."""
        words = ["disteval", "check", self.target, "--rules", result.id]
        words += ["--world-size", str(result.world_size), "--seed", str(self.seed)]
        words += ["--examples", str(self.examples)]
        if self.timeout != DEFAULT_TIMEOUT:
            words += ["--timeout", f"{self.timeout:g}"]
        if self.launcher is not None:
            words += ["--launcher", self.launcher]
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, as ``report.schema.json`` describes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "check",
            "version": metadata.version("disteval-harness"),
            "created": self.created,
            "target": self.target,
            "verdict": self.verdict,
            "required_run": self.required_run,
            "seed": self.seed,
            "examples": self.examples,
            "timeout": self.timeout,
            "launcher": self.launcher,
            "rules": [asdict(result) for result in self.rules],
        }


def select_rules(patterns: Sequence[str] = ()) -> list[Rule]:
    """Return the rules whose number matches one of the patterns, such as ``2.*``; none means all.

    Raises:
        UsageError: A pattern matches no rule.
    """
    rules = sorted(RULES, key=lambda rule: [int(part) for part in rule.number.split(".")])
    for pattern in patterns:
        if not any(fnmatch.fnmatch(rule.number, pattern) for rule in rules):
            known = ", ".join(rule.number for rule in rules)
            raise UsageError(f"no rule matches {pattern!r}; the known ones are: {known}")
    chosen = patterns or ("*",)
    return [rule for rule in rules if any(fnmatch.fnmatch(rule.number, p) for p in chosen)]


def check_backend(
    backend: str | type[BaseDistBackend],
    world_sizes: Iterable[int] = DEFAULT_WORLD_SIZES,
    *,
    rules: Sequence[Rule] | None = None,
    launcher: str | None = None,
    examples: int = 100,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    led: JudgedWorld | None = None,
) -> Report:
    """Hold a backend to every rule, in worlds of its own.

    Args:
        backend: A registered name, ``module:Class``, or a class that the ranks can import.
        world_sizes: How many ranks, one world after another.
        rules: Which rules; None stands for all.
        launcher: How to start the ranks; None stands for what the class names.
        examples: Drawn examples a rule.
        seed: Where drawing starts; the same seed draws the same examples.
        timeout: Seconds that one example may take.
        led: Ranks that somebody else has started, to be used instead of starting any.

    Raises:
        HarnessError: The backend can't be imported, or a world of it could not be started.
    """
    cls = get_backend_class(backend) if isinstance(backend, str) else backend
    name = backend if isinstance(backend, str) else cls.__name__
    report = Report(name, seed, examples, timeout, launcher)
    chosen = select_rules() if rules is None else rules
    given_up = ""
    for size in world_sizes:
        multi = cls.capabilities.multi_rank
        declared = multi.reason if size > 1 and isinstance(multi, No) else ""
        # A backend whose own launcher starts it is taken at its word here, for rule 1.1 to judge.
        believe = launcher in (None, cls.launcher)
        worlds = BackendWorlds(
            backend, size, led=led, launcher=launcher, believe=believe, timeout=timeout
        )
        lost = 0
        with keep(launcher), worlds:
            for rule in chosen:
                if declared or given_up:
                    result = Result(rule.number, rule.name, rule.sentence, rule.level, size)
                    result.outcome = "unsupported" if declared else "error"
                    result.message = declared or given_up
                else:
                    fresh = worlds.fresh if worlds.can_be_lost else None
                    result = check_rule(
                        rule, cls, worlds.get(), examples=examples, seed=seed, fresh=fresh
                    )
                    lost = lost + 1 if worlds.is_lost else 0
                    given_up = _reason_to_give_up(lost, size, worlds.can_be_lost)
                if result.outcome == "failed":
                    result.replay = report.replay(result)
                report.rules.append(result)
    return report


def _reason_to_give_up(lost: int, size: int, others: bool) -> str:
    """Return why no more rules are tried after that many lost worlds in a row; empty to go on."""
    # Ranks that somebody else has started can be lost only once.
    if lost < (2 if others else 1):
        return ""
    rules = f"{lost} rules in a row" if others else "one rule"
    return f"not run: {rules} ended in a lost world or a timeout at world size {size}"


def check_rule(
    rule: Rule,
    cls: type[BaseDistBackend],
    world: World,
    *,
    examples: int = 100,
    seed: int = 0,
    fresh: Callable[[float], World] | None = None,
) -> Result:
    """Hold a backend to one rule, in a world that is there; afterwards it may be closed.

    Args:
        rule: Which rule.
        cls: The backend's class, for what it declares.
        world: Its ranks.
        examples: Drawn examples.
        seed: Where drawing starts.
        fresh: Starts another such world, whose backend waits for so many seconds, in which ranks
            can be lost; None where there is none.
    """
    result = Result(rule.number, rule.name, rule.sentence, rule.level, world.world_size)
    bench = Bench(world, cls, examples, seed, fresh)
    begin = time.monotonic()
    try:
        _try(rule, bench)
    except NotApplicableError as reason:
        result.outcome, result.message = "unsupported", str(reason)
    except BrokenRuleError as error:
        result.outcome, result.message = "failed", error.what
        result.counterexample = error.counterexample
    except LostWorld as lost:
        result.outcome, result.message = "failed", str(lost.error)
        result.counterexample = lost.counterexample
    except WorldError as error:  # of a world to be lost, which did not even start
        result.outcome, result.message = "error", str(error)
    result.examples, result.seconds = bench.ran, time.monotonic() - begin
    result.observed = "\n".join(bench.observed)
    _hold_against_declaration(rule, cls, result)
    return result


def _try(rule: Rule, bench: Bench) -> None:
    """Run a check, again where one failure of what varies by itself proves nothing."""
    for _ in range(rule.tries - 1):
        try:
            return rule.check(bench)
        except BrokenRuleError:
            continue
    return rule.check(bench)


def _hold_against_declaration(rule: Rule, cls: type[BaseDistBackend], result: Result) -> None:
    """A declared "no" excuses a failure, and is itself a failure where the thing works."""
    if rule.capability is None:
        return
    declared = getattr(cls.capabilities, rule.capability)
    if declared:
        return
    reason = declared.reason if isinstance(declared, No) else "no reason given"
    if result.outcome == "failed":
        result.outcome, result.message = "unsupported", reason
    elif result.outcome == "passed" and result.world_size > 1:  # alone, there is nobody to tell
        result.outcome = "failed"
        result.message = f"{rule.capability} is declared a no ({reason}), but it works"
