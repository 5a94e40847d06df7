"""The exceptions of this library. All derive from HarnessError, so one ``except`` catches them.

A message says what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from disteval.text import visible

if TYPE_CHECKING:
    from disteval.world.postmortem import PostMortem, RankStatus


class HarnessError(Exception):
    """The base of every exception that this library raises on purpose."""


class UsageError(HarnessError, ValueError):
    """The caller passed a value that can't work; nothing was started."""


class UnknownBackendError(UsageError):
    """No backend is registered under the name."""


class LibraryMissingError(HarnessError, ImportError):
    """A feature can't be used because the library that it needs is missing or broken."""


class BackendUnavailableError(LibraryMissingError):
    """A backend is registered, but its library can't be used on this machine."""


class DataError(UsageError):
    """A data set on disk is missing or damaged, or is another data set."""


class WeightsError(UsageError):
    """A weights file can't be read or does not fit the model."""


class CoverageError(HarnessError):
    """Some samples were not counted, or were counted more than once."""


class LedgerError(HarnessError):
    """The ledger of an evaluation is damaged, or can't be written any more."""


class AuditError(HarnessError):
    """An audited evaluation function is wrong, or could not be judged.

    Args:
        report: The `disteval.audit.AuditReport` with all findings.
    """

    def __init__(self, report: Any) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        found = [f"{each}\nagain: {each.replay}" for each in self.report.findings]
        found = found or [self.report.reason]
        return f"{self.report.target} is {self.report.verdict}: " + "\n".join(found)


class TrainingError(HarnessError):
    """Training can't go on, because its loss is not a finite number."""


class FrameError(HarnessError):
    """The bytes that arrived are not a frame: damaged, truncated, or over the size cap."""


class SampleError(HarnessError):
    """A sample could not be read.

    Args:
        index: The sample's number in the data set.
        what: What failed, as the end of a sentence that begins with the sample.
    """

    def __init__(self, index: int, what: str) -> None:
        super().__init__(index, what)
        self.index = index
        self.what = what

    def __str__(self) -> str:
        return f"sample {self.index} {visible(self.what)}"


class RankError(HarnessError):
    """An error on one rank, raised on every rank so that no rank waits for the others.

    Args:
        rank: The rank on which the error occurred.
        what: What failed there, as the end of a sentence that begins with the rank.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(rank, what)
        self.rank = rank
        self.what = what

    def __str__(self) -> str:
        return f"rank {self.rank} {visible(self.what)}"


class WorldError(HarnessError):
    """A world of ranks could not start, a rank failed or was lost, or a deadline passed.

    Args:
        report: What happened, and what each rank was doing: a text, or a post-mortem.
        errors: The exceptions that ranks raised, by rank, as far as they could be pickled.
        in_step: Whether every rank answered, so that the world can go on.
        lost: The ranks, or the processes that had not become ranks, that ended, in
            that order.

    Attributes:
        post_mortem: The post-mortem, a `disteval.world.PostMortem`; None if the ranks were not
            examined.
    """

    def __init__(
        self,
        report: str | PostMortem,
        errors: dict[int, Exception] | None = None,
        *,
        in_step: bool = False,
        lost: Iterable[int] = (),
    ) -> None:
        super().__init__(str(report))
        self.post_mortem = None if isinstance(report, str) else report
        self.errors = errors or {}
        self.in_step = in_step
        self.lost = tuple(lost)

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """What is known of each rank; nothing if the ranks were not examined."""
        return () if self.post_mortem is None else tuple(self.post_mortem.ranks)

    @property
    def summary(self) -> str:
        """What happened, and a line for each rank, without the `evidence`."""
        return str(self) if self.post_mortem is None else self.post_mortem.summary

    @property
    def evidence(self) -> list[tuple[str, str]]:
        """The title and the text of each traceback, stack and output of ranks."""
        return [] if self.post_mortem is None else self.post_mortem.evidence

    @property
    def common(self) -> Exception | None:
        """The first rank's error, if every rank raised a `HarnessError` of the same class."""
        found = list(self.errors.values())
        if self.in_step and found and all(isinstance(e, HarnessError) for e in found):
            first = self.errors[min(self.errors)]
            return first if len({type(e) for e in found}) == 1 else None
        return None


def describe_error(error: BaseException) -> str:
    """Return an exception's class and message, even if its own ``__str__`` raises.

    Control characters are shown as escapes.
    """
    try:
        return visible(f"{type(error).__name__}: {error}")
    except Exception:  # another rank may wait for this description
        return f"{type(error).__name__}, whose message can't be shown"


def exit_code_of(error: BaseException) -> int:
    """Return a failed command's exit status: 2 if it was asked for wrongly, else 1."""
    if isinstance(error, WorldError) and error.common is not None:
        error = error.common
    return 2 if isinstance(error, (UsageError, LibraryMissingError)) else 1
