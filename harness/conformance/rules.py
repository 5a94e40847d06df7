"""The numbered rules of the contract, and what a check of one has to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from harness.conformance.fingerprint import Seen
from harness.errors import HarnessError, WorldError
from harness.worlds import World

T = TypeVar("T")


class BrokenRuleError(HarnessError):
    """A backend broke a rule.

    Args:
        what: What every rank did, against what it should have done.
        counterexample: The smallest example found.
    """

    def __init__(self, what: str, counterexample: str = "") -> None:
        super().__init__(what, counterexample)
        self.what = what
        self.counterexample = counterexample

    def __str__(self) -> str:
        return f"{self.what}\nexample: {self.counterexample}" if self.counterexample else self.what


class LostWorld(BaseException):
    """Ends Hypothesis at once: there is no world left in which to look for a smaller example."""

    def __init__(self, error: WorldError, counterexample: str) -> None:
        self.error = error
        self.counterexample = counterexample


class Bench:
    """A world of the backend under test, and how much of it to try.

    Args:
        world: Its ranks.
        examples: Drawn examples a rule.
        random_seed: Where drawing starts.

    Attributes:
        ran: Examples tried so far.
    """

    def __init__(self, world: World, examples: int = 100, random_seed: int = 0) -> None:
        self.world = world
        self.examples = examples
        self.ran = 0
        self._seed = random_seed

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.world.world_size

    def run(
        self, function: Callable[..., T], args: Sequence[Any] = (), example: str = ""
    ) -> list[T]:
        """Run on every rank; an exception on any rank breaks the rule.

        Raises:
            BrokenRuleError: A rank raised, and the world can go on.
        """
        self.ran += 1
        try:
            return self.world.run(function, *args)
        except WorldError as error:
            if error.in_step:
                raise BrokenRuleError(str(error), example) from error
            raise LostWorld(error, example) from error

    def expect(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        expected: Sequence[Any],
        example: str,
    ) -> None:
        """Run on every rank, and hold what came back against what should have.

        Raises:
            BrokenRuleError: Some rank's answer is another.
        """
        found = self.run(function, args, example)
        wrong = [rank for rank in range(self.world_size) if found[rank] != expected[rank]]
        if wrong:
            lines = [
                f"rank {rank} got {_text(found[rank])}\n  instead of {_text(expected[rank])}"
                for rank in wrong
            ]
            raise BrokenRuleError("\n".join(lines), example)

    def each(self, strategy: SearchStrategy[T], body: Callable[[T], None]) -> None:
        """Call ``body`` on drawn examples, and find the smallest that fails.

        Raises:
            BrokenRuleError: Of the smallest failing example.
            LostWorld: An example ended in a lost world.
        """

        @seed(self._seed)
        @settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            print_blob=False,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(example: T) -> None:
            try:
                body(example)
            except BrokenRuleError as error:
                failures.append(error)
                raise

        failures: list[BrokenRuleError] = []
        try:
            run()
        except Flaky:
            # The same example failed and then did not: what this backend does depends on the calls
            # before it, and every example is another call.
            first = min(failures, key=lambda failure: len(failure.counterexample))
            what = f"{first.what}\nnot at every try: it depends on the calls before"
            raise BrokenRuleError(what, first.counterexample) from None


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        number: Such as ``2.1``.
        name: A few words.
        sentence: What a backend has to do; the first line of the check's docstring.
        check: Raises `BrokenRuleError` when the bench's backend does not.
        capability: The field of `Capabilities` by which a backend may declare that it can't; None
            where it must.
    """

    number: str
    name: str
    sentence: str
    check: Callable[[Bench], None]
    capability: str | None = None

    @property
    def level(self) -> str:
        """``required``, or ``optional`` where a declared "no" is accepted."""
        return "optional" if self.capability else "required"


RULES: list[Rule] = []
"""Every rule, in order."""


def rule(
    number: str, name: str, *, capability: str | None = None
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a check one of `RULES`."""

    def register(check: Callable[[Bench], None]) -> Callable[[Bench], None]:
        sentence = (check.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")
        RULES.append(Rule(number, name, sentence, check, capability))
        return check

    return register


def _text(value: Any) -> str:
    if isinstance(value, Seen):
        return value.text
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return repr(value)
