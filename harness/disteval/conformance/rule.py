"""The numbered rules of the contract, and what their checks raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from disteval.conformance.causes import Detector
from disteval.conformance.wrong import Difference
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, WorldError
from disteval.judging.retry import doubt
from disteval.world.postmortem import first_line

if TYPE_CHECKING:
    from disteval.conformance.bench import Bench


class BrokenRuleError(HarnessError):
    """A backend broke a rule.

    Args:
        what: The results of the ranks and the expected ones.
        counterexample: The smallest example found.
        differences: The wrong results of that example.
        error: The error of a world whose ranks have raised.

    Attributes:
        doubt: What something outside may have caused, see `disteval.judging.retry.doubt`.
    """

    def __init__(
        self,
        what: str,
        counterexample: str = "",
        differences: Sequence[Difference] = (),
        error: WorldError | None = None,
    ) -> None:
        super().__init__(what, counterexample)
        self.what = what
        self.counterexample = counterexample
        self.differences, self.error = differences, error
        self.doubt = doubt(error) if error else ""

    def __str__(self) -> str:
        return f"{self.what}\nexample: {self.counterexample}" if self.counterexample else self.what


class LostWorld(BaseException):
    """An exception that ends Hypothesis, because no world is left to look for a smaller example.

    Args:
        error: The loss.
        counterexample: The example that was tried.

    Attributes:
        doubt: As of `BrokenRuleError`; what came after another failure is in no doubt.
    """

    def __init__(self, error: WorldError, counterexample: str) -> None:
        self.error, self.what = error, error.summary
        self.counterexample = counterexample
        self.differences: Sequence[Difference] = ()
        self.doubt = doubt(error)

    def came_after(self, failure: str) -> None:
        """Add the first line of a failure before the loss, which nothing outside can explain."""
        if self.doubt:
            self.doubt = ""
            self.what += f"\nbefore that, {first_line(failure)}"


class NotApplicableError(HarnessError):
    """The rule does not apply to this backend, or can't be tried on these ranks."""


@contextmanager
def failing_while(when: str) -> Iterator[None]:
    """Say of a failure when it happened."""
    try:
        yield
    except (BrokenRuleError, LostWorld) as error:
        error.what = f"when {when}: {error.what}"
        raise


class Trial(NamedTuple):
    """One example of a check.

    Attributes:
        args: The argument of each rank.
        expected: The results that each rank must return, in a list.
        example: What describes it for people; nothing where its collectives do.
        collectives: The collectives that the ranks call, where the trial is made of them.
    """

    args: Sequence[Any]
    expected: Sequence[list[Any]]
    example: str = ""
    collectives: Sequence[Any] = ()

    def __str__(self) -> str:
        return self.example or "; ".join(map(str, self.collectives))


@dataclass(frozen=True)
class Rule:
    """A rule of the contract.

    Attributes:
        number: The number, such as ``2.1``.
        name: The name, a few words.
        sentence: What a backend has to do; the first paragraph of the check's docstring.
        check: The function that raises `BrokenRuleError` if the backend breaks the rule.
        usually: What people get wrong and what to do; the paragraph of the check's docstring that
            begins with this word.
        capability: The field of `Capabilities` in which a backend may declare that it can't keep
            the rule; None if every backend must keep it.
        level: ``required``, ``optional`` if a "no" may be declared, or ``stochastic`` if the check
            measures what varies by itself, and measures again then.
        process_wide: Whether the check measures or sets something that all threads of a process
            share.
        loses_ranks: Whether the check ends the world in which it is tried.
        cause: Recognises a mistake that this rule alone shows.
        starts_many: Whether the check starts many ranks, which takes all cores.
        draws: The name of the examples in `disteval.conformance.drawing` that the check draws.
        of: The class of the backends that the rule is for.
    """

    number: str
    name: str
    sentence: str
    check: Callable[[Bench], None]
    usually: str = ""
    capability: str | None = None
    level: str = "required"
    process_wide: bool = False
    loses_ranks: bool = False
    cause: Detector | None = None
    starts_many: bool = False
    draws: str = ""
    of: type = BaseDistBackend


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
        told = " ".join((check.__doc__ or "").split())
        sentence, _, usually = told.partition(" Usually: ")
        if "capability" in attributes:
            attributes["level"] = "optional"
        RULES.append(Rule(number, name, sentence, check, usually, **attributes))
        return check

    return register
