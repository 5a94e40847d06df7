"""The loops of the corpus, and what the audit must say about each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Judged = Literal["sound", "defect", "documented", "user"]
"""What a loop shows: nothing; a defect of its library; what the library's documentation or source
says that it does; or a mistake of those who write such a loop."""


class Entry(NamedTuple):
    """One loop of the corpus.

    Attributes:
        target: The function, as `disteval audit` takes it.
        library: The distribution that the loop is about.
        judged: See `Judged`.
        kind: The kind of the first finding; an empty text for a sound loop.
        case: The smallest case that is wrong.
        see: The documentation or thread that says so; an empty text where none was found.
        what: The loop in one sentence.
    """

    target: str
    library: str
    judged: Judged
    kind: str
    case: str
    see: str
    what: str


ENTRIES: list[Entry] = []

Loop = Callable[..., Any]


def sound(library: str) -> Callable[[Loop], Loop]:
    """Register a loop that is right."""
    return _register(library, "sound", "", "", "")


def wrong(
    library: str, judged: Judged, kind: str, case: str, see: str = ""
) -> Callable[[Loop], Loop]:
    """Register a loop that the audit convicts; see `Entry`."""
    return _register(library, judged, kind, case, see)


def _register(
    library: str, judged: Judged, kind: str, case: str, see: str
) -> Callable[[Loop], Loop]:
    def register(function: Loop) -> Loop:
        target = f"{function.__module__}:{function.__name__}"
        what = " ".join((function.__doc__ or "").split())
        ENTRIES.append(Entry(target, library, judged, kind, case, see, what))
        return function

    return register
