"""What ranks tell each other before and after the loop: their settings, and their failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from disteval.contract import BaseDistBackend
from disteval.data.contents import Look
from disteval.errors import HarnessError, RankError, describe_error
from disteval.identity import check_same, digest_of, short

Result = TypeVar("Result")


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
    held: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Compare all ranks' settings; every rank must call it, also one that could not prepare.

    Args:
        backend: The backend that joins the ranks, which also start together after this.
        settings: The values that must be the same on every rank, by name.
        error: The error of this rank, if it could not prepare.
        look: What this rank has seen of the samples, if that is compared.
        held: What may differ between ranks, by name.

    Returns:
        What all ranks hold alike.

    Raises:
        UsageError: On every rank, when settings or samples differ.
        RankError: On every rank, when a rank could not prepare. If all could not, each raises its
            own error.
    """
    failure = None
    if error is not None:
        what = f"could not begin: {describe_error(error)}"
        failure = Failure(error.what if isinstance(error, RankError) else what, error)
    mine, own = dict(settings), dict(held or {})
    seen = short(look.text) if look else ""
    digest = digest_of(mine) if backend.world_size > 1 else b""
    sent = gathered(backend, (digest, seen, own), failure, own=True)
    if any(other != sent[0][0] for other, *_ in sent):
        check_same(backend.all_gather_object(mine))
    if look is not None:
        look.compare([digest for _, digest, _ in sent], backend)
    return {k: v for k, v in own.items() if all(each.get(k) == v for *_, each in sent)}


def gathered(
    backend: BaseDistBackend, value: Any, failure: Failure | None, *, own: bool = False
) -> list[Any]:
    """Return the values of all ranks, unless a rank has failed; every rank must call it.

    Args:
        backend: The backend that joins the ranks.
        value: What this rank sends.
        failure: The failure of this rank, which is raised even where the collective fails.
        own: Whether this rank raises its own error where all have failed.

    Raises:
        RankError: On every rank, the failure of the first rank that has one.
    """
    sent = [(value, failure and failure.what)]
    try:
        if backend.world_size > 1:
            sent = backend.all_gather_object(sent[0])
    except RankError:
        raise
    except Exception as error:
        if failure is None:
            raise
        if hasattr(failure.error, "add_note"):  # Python 3.11
            failure.error.add_note(f"The collective that tells it failed: {describe_error(error)}")
        raise RankError(backend.rank, failure.what) from failure.error
    failed = [(rank, what) for rank, (_, what) in enumerate(sent) if what is not None]
    if failed:
        if own and failure is not None and len(failed) == len(sent):
            raise failure.error
        rank, what = failed[0]
        others = [str(other) for other, _ in failed[1:]]
        if others:
            what += f"; rank{'s' * (len(others) > 1)} {', '.join(others)} failed too"
        raise RankError(rank, what) from failure and failure.error
    return [each for each, _ in sent]


def on_rank_0(
    backend: BaseDistBackend, do: Callable[[], Result], what: str, advice: str = ""
) -> Result:
    """Return what ``do`` returns on rank 0; every rank must call this, and gets its HarnessError.

    An error of another kind is a RankError, which says that rank 0 could not do ``what``, and
    gives the advice.
    """
    result: Any = None
    error: HarnessError | None = None
    if backend.rank == 0:
        try:
            result = do()
        except HarnessError as caught:  # the other ranks wait for the result, whatever it is
            error = caught
        except Exception as caught:
            error = RankError(0, f"could not {what}: {describe_error(caught)}{advice}")
            error.__cause__ = caught
    failure = error
    if backend.world_size > 1:
        result, failure = backend.broadcast_object((result, error), src=0)
    if failure is not None:
        raise error or failure
    return result  # type: ignore[no-any-return]
