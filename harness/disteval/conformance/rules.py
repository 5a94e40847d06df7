"""The numbered rules of the contract, and the `Bench` that a check of a rule gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from disteval.conformance.fingerprint import Seen
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, UsageError, WorldError
from disteval.worlds import World
from disteval.worlds.channel.outcome import Outcome

T = TypeVar("T")


class BrokenRuleError(HarnessError):
    """A backend broke a rule.

    Args:
        what: The results of the ranks and the expected ones.
        counterexample: The smallest example found.
    """

    def __init__(self, what: str, counterexample: str = "") -> None:
        super().__init__(what, counterexample)
        self.what = what
        self.counterexample = counterexample

    def __str__(self) -> str:
        return f"{self.what}\nexample: {self.counterexample}" if self.counterexample else self.what


class LostWorld(BaseException):
    """An exception that ends Hypothesis, because no world is left to look for a smaller example."""

    def __init__(self, error: WorldError, counterexample: str) -> None:
        self.error = error
        self.counterexample = counterexample


class NotApplicableError(HarnessError):
    """The rule does not apply to this backend, or can't be tried on these ranks."""


class Bench:
    """The ranks of the backend under test, and the number of examples to try.

    Args:
        world: The world of these ranks.
        cls: The backend's class.
        examples: The number of drawn examples for each rule.
        random_seed: The seed of drawing.
        fresh: A function that starts another such world, whose backend waits for the given number
            of seconds; None if no other world can be started.

    Attributes:
        ran: The number of examples tried so far.
        observed: Lines in which a check describes what the ranks did, also if it passes.
    """

    def __init__(
        self,
        world: World,
        cls: type[BaseDistBackend],
        examples: int = 100,
        random_seed: int = 0,
        fresh: Callable[[float], World] | None = None,
    ) -> None:
        self.world = world
        self.cls = cls
        self.examples = examples
        self.ran = 0
        self.observed: list[str] = []
        self.random_seed = random_seed
        self._fresh = fresh

    @property
    def can_lose(self) -> bool:
        """Whether worlds can be started whose ranks the check may kill."""
        return self._fresh is not None

    def lose(
        self,
        function: Callable[..., Any],
        task: Any,
        awaited: Sequence[int],
        wait: float,
        seconds: float,
    ) -> Outcome:
        """Run a function on every rank of a separate world, of which some ranks will be lost.

        All ranks call one collective before the function.

        Args:
            function: The function that every rank runs.
            task: The function's argument, the same on every rank.
            awaited: The ranks that must return.
            wait: The seconds that the backend waits, `Rendezvous.timeout`.
            seconds: The seconds within which the awaited ranks must return.

        Raises:
            UsageError: No separate world can be started, see `can_lose`.
            BrokenRuleError: The collective before the function failed.
        """
        if self._fresh is None:
            raise UsageError("no second world can be started; see Bench.can_lose")
        self.ran += 1
        world = self._fresh(wait)
        # This is a separate run, because one rank may have its result before another has.
        try:
            world.run(gather_once)
        except WorldError as error:
            world.close()
            raise BrokenRuleError(str(error), "an all-gather, before any rank was lost") from error
        return world.attempt(function, *[task] * self.world_size, awaited=awaited, seconds=seconds)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.world.world_size

    def run(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        example: str = "",
        delay: float = 0.0,
    ) -> list[T]:
        """Run a function on every rank; an exception on any rank breaks the rule.

        Args:
            function: The function that every rank runs.
            args: One argument for each rank.
            example: A description of the example for people.
            delay: The seconds by which ranks are late on purpose; the timeout is that much longer.

        Raises:
            BrokenRuleError: A rank raised an exception, and the world can go on.
            LostWorld: The ranks can't go on, for example because one hangs.
        """
        self.ran += 1
        try:
            return self.world.run(function, *args, timeout=self.world.timeout + delay)
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
        delay: float = 0.0,
    ) -> None:
        """Run a function on every rank, see `run`, and compare each result with the expected one.

        Raises:
            BrokenRuleError: The result of a rank differs, or `run` raised the error.
        """
        found = self.run(function, args, example, delay)
        wrong = [rank for rank in range(self.world_size) if found[rank] != expected[rank]]
        if wrong:
            lines = [
                f"rank {rank} got {_text(found[rank])}\n  instead of {_text(expected[rank])}"
                for rank in wrong
            ]
            raise BrokenRuleError("\n".join(lines), example)


@dataclass(frozen=True)
class Rule:
    """A rule of the contract.

    Attributes:
        number: The number, such as ``2.1``.
        name: The name, a few words.
        sentence: What a backend has to do; the first paragraph of the check's docstring.
        check: The function that raises `BrokenRuleError` if the backend breaks the rule.
        capability: The field of `Capabilities` in which a backend may declare that it can't keep
            the rule; None if every backend must keep it.
        tries: How many times in a row the check has to fail; more than once if the measurement
            varies by itself.
        process_wide: Whether the check measures or sets something that all threads of a process
            share.
        loses_ranks: Whether the check ends the world in which it is tried.
    """

    number: str
    name: str
    sentence: str
    check: Callable[[Bench], None]
    capability: str | None = None
    tries: int = 1
    process_wide: bool = False
    loses_ranks: bool = False

    @property
    def level(self) -> str:
        """``required``, ``optional`` if a "no" may be declared, or ``stochastic``."""
        if self.capability:
            return "optional"
        return "stochastic" if self.tries > 1 else "required"


RULES: list[Rule] = []
"""All rules, in the order in which modules register them."""


def rule(
    number: str, name: str, **attributes: Any
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Return a decorator that adds a check to `RULES`.

    Args:
        number: See `Rule`.
        name: See `Rule`.
        **attributes: Other attributes of `Rule`.
    """

    def register(check: Callable[[Bench], None]) -> Callable[[Bench], None]:
        sentence = (check.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")
        RULES.append(Rule(number, name, sentence, check, **attributes))
        return check

    return register


def _text(value: Any) -> str:
    if isinstance(value, Seen):
        return value.text
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return repr(value)


def gather_once(backend: BaseDistBackend) -> list[int]:
    """Call one all-gather, and return its result."""
    return backend.all_gather_object(backend.rank)
