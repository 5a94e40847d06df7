"""Running every rule at every world size, and saying what came of it."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from harness.conformance import checks  # noqa: F401 - importing it registers the rules
from harness.conformance.rules import RULES, Bench, BrokenRuleError, LostWorld, Rule
from harness.contract import BaseDistBackend, No
from harness.errors import UsageError
from harness.worlds import World

DEFAULT_WORLD_SIZES = (1, 2, 3, 5)
_LOST_IN_A_ROW = 2


@dataclass
class Result:
    """What came of one rule at one world size.

    Attributes:
        id: The rule's number.
        name: The rule's name.
        level: ``required`` or ``optional``.
        world_size: The number of ranks.
        outcome: ``passed``, ``failed``, ``unsupported`` (declared, with its reason) or ``error``
            (it could not be judged).
        examples: How many examples were tried.
        seconds: How long it took.
        message: What was wrong, or why it was not judged.
        counterexample: The smallest failing example found.
    """

    id: str
    name: str
    level: str
    world_size: int
    outcome: str = "passed"
    examples: int = 0
    seconds: float = 0.0
    message: str = ""
    counterexample: str = ""


@dataclass
class Report:
    """What came of a whole check.

    Attributes:
        target: The backend, as it was named.
        seed: Where drawing started.
        examples: Drawn examples a rule.
        rules: Every result, by world size and rule.
    """

    target: str
    seed: int
    examples: int
    rules: list[Result] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``broken`` if a rule failed, ``incomplete`` if one was not judged; ``conformant``."""
        outcomes = {result.outcome for result in self.rules}
        if "failed" in outcomes:
            return "broken"
        return "conformant" if outcomes and "error" not in outcomes else "incomplete"

    @property
    def required_run(self) -> int:
        """How many required rules were judged, over all world sizes."""
        judged = ("passed", "failed")
        return sum(r.level == "required" and r.outcome in judged for r in self.rules)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "target": self.target,
            "verdict": self.verdict,
            "required_run": self.required_run,
            "seed": self.seed,
            "examples": self.examples,
            "rules": [asdict(result) for result in self.rules],
        }


def select_rules(patterns: Sequence[str] = ()) -> list[Rule]:
    """Return the rules whose number matches one of the patterns, such as ``2.*``; none means all.

    Raises:
        UsageError: A pattern matches no rule.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatch(rule.number, pattern) for rule in RULES):
            known = ", ".join(rule.number for rule in RULES)
            raise UsageError(f"no rule matches {pattern!r}; the known ones are: {known}")
    chosen = patterns or ("*",)
    return [rule for rule in RULES if any(fnmatch.fnmatch(rule.number, p) for p in chosen)]


def check_backend(
    target: str,
    backend: str | type[BaseDistBackend],
    cls: type[BaseDistBackend],
    world_sizes: Iterable[int] = DEFAULT_WORLD_SIZES,
    *,
    rules: Sequence[Rule] | None = None,
    launcher: str | None = None,
    examples: int = 100,
    seed: int = 0,
    timeout: float = 20.0,
) -> Report:
    """Hold a backend to every rule, in worlds of its own.

    Args:
        target: What the report calls it.
        backend: What the ranks create: a registered name, or a class that they can import.
        cls: The class itself.
        world_sizes: How many ranks, one world after another.
        rules: Which rules; None stands for all.
        launcher: How to start the ranks; None stands for what the class names.
        examples: Drawn examples a rule.
        seed: Where drawing starts; the same seed draws the same examples.
        timeout: Seconds that one example may take.

    Raises:
        WorldError: A world could not be started.
    """
    report = Report(target, seed, examples)
    chosen = select_rules() if rules is None else rules
    given_up = ""
    for size in world_sizes:
        multi = cls.capabilities.multi_rank
        declared = multi.reason if size > 1 and isinstance(multi, No) else ""
        with _Worlds(partial(World, backend, size, launcher=launcher, timeout=timeout)) as worlds:
            for rule in chosen:
                if declared or given_up:
                    result = Result(rule.number, rule.name, rule.level, size)
                    result.outcome = "unsupported" if declared else "error"
                    result.message = declared or given_up
                else:
                    result = check_rule(rule, cls, worlds.get(), examples=examples, seed=seed)
                    given_up = worlds.reason_to_give_up(size)
                report.rules.append(result)
    return report


def check_rule(
    rule: Rule, cls: type[BaseDistBackend], world: World, *, examples: int = 100, seed: int = 0
) -> Result:
    """Hold a backend to one rule, in a world that is there; afterwards it may be closed.

    Args:
        rule: Which rule.
        cls: The backend's class, for what it declares.
        world: Its ranks.
        examples: Drawn examples.
        seed: Where drawing starts.
    """
    result = Result(rule.number, rule.name, rule.level, world.world_size)
    bench = Bench(world, examples, seed)
    begin = time.monotonic()
    try:
        rule.check(bench)
    except BrokenRuleError as error:
        result.outcome, result.message = "failed", error.what
        result.counterexample = error.counterexample
    except LostWorld as lost:
        result.outcome, result.message = "failed", str(lost.error)
        result.counterexample = lost.counterexample
    result.examples, result.seconds = bench.ran, time.monotonic() - begin
    _hold_against_declaration(rule, cls, result)
    return result


class _Worlds:
    """The present world of one size; a fresh one after one was lost."""

    def __init__(self, start: Callable[[], World]) -> None:
        self._start = start
        self._world: World | None = None
        self._lost_in_a_row = 0

    def get(self) -> World:
        if self._world is None or not self._world.is_open:
            self._world = self._start()
        return self._world

    def reason_to_give_up(self, size: int) -> str:
        """Why no more rules are to be tried; empty while there is hope."""
        lost = self._world is not None and not self._world.is_open
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if self._lost_in_a_row < _LOST_IN_A_ROW:
            return ""
        return (
            f"not run: {_LOST_IN_A_ROW} rules in a row ended in a lost world or a timeout at "
            f"world size {size}"
        )

    def __enter__(self) -> _Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        if self._world is not None:
            self._world.close()


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
