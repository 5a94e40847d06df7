"""The numbered rules of the contract, and what a check of one has to work with."""

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


class NotApplicableError(HarnessError):
    """A rule has nothing to say about this backend, or can't be tried on these ranks."""


class Bench:
    """A world of the backend under test, and how much of it to try.

    Args:
        world: Its ranks.
        cls: The backend's class.
        examples: Drawn examples a rule.
        random_seed: Where drawing starts.
        fresh: Starts another world of the same kind, whose backend waits for so many seconds; None
            where no other can be had.

    Attributes:
        ran: Examples tried so far.
        observed: Lines that a check leaves of what ranks saw, also where it passes.
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
        """Whether there can be worlds of which ranks may be lost."""
        return self._fresh is not None

    def lose(
        self,
        function: Callable[..., Any],
        task: Any,
        awaited: Sequence[int],
        wait: float,
        seconds: float,
    ) -> Outcome:
        """Run on every rank of a world of its own, from which not all ranks will come back.

        All of them have been through one collective before.

        Args:
            function: What every rank is to do.
            task: Its argument, the same on every rank.
            awaited: The ranks that are to come back.
            wait: Seconds that the backend itself waits, `Rendezvous.timeout`.
            seconds: How long the awaited ranks may take.

        Raises:
            UsageError: There can be no such world, see `can_lose`.
            BrokenRuleError: That one collective failed.
        """
        if self._fresh is None:
            raise UsageError("no world can be started beside the present one")
        self.ran += 1
        world = self._fresh(wait)
        # An order of its own: one rank may have its result before another has.
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
        """Run on every rank; an exception on any rank breaks the rule.

        Args:
            function: What every rank does.
            args: One argument for each rank.
            example: What the ranks do, for people.
            delay: Seconds by which ranks are late on purpose, beyond the world's own bound.

        Raises:
            BrokenRuleError: A rank raised, and the world can go on.
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
        """Run on every rank, see `run`, and compare what each returned with what it should.

        Raises:
            BrokenRuleError: Some rank's answer is another.
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
    """One rule.

    Attributes:
        number: Such as ``2.1``.
        name: A few words.
        sentence: What a backend has to do; the first line of the check's docstring.
        check: Raises `BrokenRuleError` when the bench's backend does not.
        capability: The field of `Capabilities` by which a backend may declare that it can't; None
            where it must.
        tries: How often in a row it has to fail to be broken; more than once where what is measured
            varies by itself.
        process_wide: Whether it measures or sets something that all threads of a process share.
        loses_ranks: Whether it ends the world in which it is tried.
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
        """``required``, ``optional`` where a "no" may be declared, or ``stochastic``."""
        if self.capability:
            return "optional"
        return "stochastic" if self.tries > 1 else "required"


RULES: list[Rule] = []
"""Every rule, in order."""


def rule(
    number: str, name: str, **attributes: Any
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a check one of `RULES`.

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
    """One all-gather."""
    return backend.all_gather_object(backend.rank)
