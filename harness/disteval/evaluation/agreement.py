"""What ranks tell each other before and after the loop: their settings, and their failures."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from disteval.contract import BaseDistBackend
from disteval.data.contents import Look
from disteval.errors import RankError, describe_error
from disteval.identity import check_same, digest_of

_log = logging.getLogger("disteval")


class Failure(NamedTuple):
    """The failure of this rank.

    Attributes:
        what: What failed, as the end of a sentence that begins with the rank.
        error: The exception.
    """

    what: str
    error: Exception


def agree(
    backend: BaseDistBackend,
    settings: Mapping[str, Any],
    error: Exception | None = None,
    look: Look | None = None,
) -> None:
    """Compare all ranks' settings; every rank must call it, also one that could not prepare.

    Args:
        backend: The backend that joins the ranks, which also start together after this.
        settings: The values that must be the same on every rank, by name.
        error: The error of this rank, if it could not prepare.
        look: What this rank has seen of the samples, if that is compared.

    Raises:
        UsageError: On every rank, when settings or samples differ.
        RankError: On every rank, when a rank could not prepare. If all could not, each raises its
            own error.
    """
    failure = None if error is None else Failure(f"could not begin: {describe_error(error)}", error)
    mine = dict(settings)
    digest = digest_of(mine)
    with outlive(backend.rank, failure):
        sent = backend.all_gather_object((digest, failure and failure.what, look and look.digest))
    failures = [what for _, what, _ in sent]
    if error is not None and all(failures):
        raise error
    raise_failure(failures, failure)
    if any(other != sent[0][0] for other, *_ in sent):
        check_same(backend.all_gather_object(mine))
    if look is not None:
        look.compare([digest for *_, digest in sent], backend)


@contextmanager
def outlive(rank: int, failure: Failure | None) -> Iterator[None]:
    """Raise this rank's failure, if it has one, even where the collective that tells it fails."""
    try:
        yield
    except RankError:
        raise
    except Exception as error:
        if failure is None:
            raise
        if hasattr(failure.error, "add_note"):  # Python 3.11
            failure.error.add_note(f"The collective that tells it failed: {describe_error(error)}")
        raise RankError(rank, failure.what) from failure.error


def log_failure(rank: int, failure: Failure) -> None:
    """Log a failure at once, because the other ranks hear of it after their last batch."""
    _log.error("rank %d %s", rank, failure.what, exc_info=failure.error)


def raise_failure(failures: Sequence[str | None], own: Failure | None) -> None:
    """Raise the failure of the first rank that has one; every rank raises the same.

    Args:
        failures: What failed on each rank; None where nothing did.
        own: This rank's failure, which becomes the cause of the error.
    """
    failed = [(rank, what) for rank, what in enumerate(failures) if what is not None]
    if failed:
        rank, what = failed[0]
        others = [str(other) for other, _ in failed[1:]]
        if others:
            what += f"; rank{'s' * (len(others) > 1)} {', '.join(others)} failed too"
        raise RankError(rank, what) from own and own.error
