"""The exceptions of the harness: one family, so that one ``except HarnessError`` catches them all.

A message names the value that is wrong, why it is wrong, and what would be right.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every exception that the harness raises on purpose."""


class UsageError(HarnessError, ValueError):
    """The caller passed something that can't work; nothing was started."""


class UnknownBackendError(UsageError):
    """No backend is registered under that name."""


class LibraryMissingError(HarnessError, ImportError):
    """Something known can't be used here, because its library is missing or broken."""


class BackendUnavailableError(LibraryMissingError):
    """The backend is known, but its library can't be used here."""


class DataError(UsageError):
    """A data set on disk is missing, damaged or not what it claims to be."""


class WeightsError(UsageError):
    """A weights file can't be read or does not fit the model."""


class CoverageError(HarnessError):
    """Samples were not counted exactly once: some are missing, or counted more than once."""


class FrameError(HarnessError):
    """The bytes that arrived are not a frame: damaged, truncated, or over the size cap."""


class IncompleteFrameError(FrameError):
    """A frame goes on after the bytes that arrived.

    Args:
        what: What is missing, as a sentence.
        size: The length of the whole frame in bytes.
    """

    def __init__(self, what: str, size: int) -> None:
        super().__init__(what, size)
        self.what = what
        self.size = size

    def __str__(self) -> str:
        return self.what


class RankError(HarnessError):
    """Something failed on one rank; raised on every rank, so that none waits for the others.

    Args:
        rank: The rank on which it failed.
        what: What failed there, as one sentence without the rank.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(rank, what)
        self.rank = rank
        self.what = what

    def __str__(self) -> str:
        return f"rank {self.rank} {self.what}"


class WorldError(HarnessError):
    """A world of ranks could not start, a rank failed or was lost, or time ran out.

    Args:
        report: What happened, and what each rank was doing.
        errors: What the ranks that raised raised, by rank, where it could travel.
        in_step: Whether every rank came back, so that the world can go on.
    """

    def __init__(
        self, report: str, errors: dict[int, Exception] | None = None, *, in_step: bool = False
    ) -> None:
        super().__init__(report)
        self.errors = errors or {}
        self.in_step = in_step

    @property
    def common(self) -> Exception | None:
        """What every rank raised, where all of them raised the same kind of error of ours."""
        found = list(self.errors.values())
        if self.in_step and found and all(isinstance(e, HarnessError) for e in found):
            first = self.errors[min(self.errors)]
            return first if len({type(e) for e in found}) == 1 else None
        return None


def exit_code_of(error: BaseException) -> int:
    """The exit status of a command that failed so: 2 when it was asked for wrongly, else 1."""
    if isinstance(error, WorldError) and error.common is not None:
        error = error.common
    return 2 if isinstance(error, (UsageError, LibraryMissingError)) else 1
