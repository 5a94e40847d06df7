"""The only way of trying again: what something outside may have caused, once, in new ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from disteval.errors import WorldError, describe_error
from disteval.world.postmortem import first_line

R = TypeVar("R", bound=Any)  # a data class with a message

_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)
_NOT_AGAIN = (
    "it did not happen again when it was tried on other ranks, so something outside may have "
    "caused it; run this again"
)
_NO_OTHER_RANKS = (
    "something outside may have caused it, and this job can't start other ranks to try it again; "
    "run this without the launcher of this job"
)


@dataclass(frozen=True)
class Try(Generic[R]):
    """One try of something on ranks.

    Attributes:
        result: What it has shown.
        doubt: A failure that something outside may have caused, in one line; nothing if the result
            counts.
        failed: Whether it has failed.
    """

    result: R
    doubt: str = ""
    failed: bool = False


def doubt(error: WorldError) -> str:
    """Return in one line what something outside may have caused, such as a busy machine.

    That is so if ranks ended, or were late, or all that they raised tells that a wait was over.
    """
    said = map(describe_error, error.errors.values())
    in_doubt = error.lost or all(map(_TIMED_OUT.search, said))
    return first_line(str(error)) if in_doubt else ""


def settle(first: Try[R], again: Callable[[], Try[R]] | None) -> tuple[R, str]:
    """Return the result that counts, and why it is not judged; nothing if it is.

    What was in doubt has to fail again, and then its message says both; or else it is not judged.

    Args:
        first: The try.
        again: Tries it in new ranks; None if no others can be started.
    """
    if not first.doubt:
        return first.result, ""
    if again is None:
        return first.result, f"{first.doubt}; {_NO_OTHER_RANKS}"
    second = again()
    if not (second.failed or second.doubt):
        return first.result, f"{first.doubt}; {_NOT_AGAIN}"
    said = f"{second.result.message}\nfailed twice; the first time: {first.doubt}"
    return replace(second.result, message=said), ""
