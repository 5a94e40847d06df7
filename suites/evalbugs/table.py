"""The loops of the corpus, and what the audit must say about each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Judged = Literal["sound", "defect", "documented", "user"]
"""What a loop shows: nothing; a defect of its library; what the library's documentation or source
says that it does; or a mistake of those who write such a loop."""


class Entry(NamedTuple):
    """One loop of the corpus, with one release of its library.

    Attributes:
        target: The function, as `disteval audit` takes it.
        library: The distribution that the loop is about.
        judged: See `Judged`.
        kind: The kind of the first finding; an empty text for a sound loop.
        case: The smallest case that is wrong.
        see: The documentation or thread that says so; an empty text where none was found.
        what: The loop in one sentence.
        release: The older release that is judged; an empty text stands for the newest.
    """

    target: str
    library: str
    judged: Judged
    kind: str
    case: str
    see: str
    what: str
    release: str = ""


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


def older(release: str, judged: Judged, kind: str, case: str, see: str) -> Callable[[Loop], Loop]:
    """Say what the audit finds in an older release; see `Entry`.

    It belongs above `sound` or `wrong`, which name the library and judge its newest release.
    """

    def register(function: Loop) -> Loop:
        newest = next(e for e in ENTRIES if e.target == _target(function) and not e.release)
        changed = newest._replace(judged=judged, kind=kind, case=case, see=see, release=release)
        ENTRIES.append(changed)
        return function

    return register


def _target(function: Loop) -> str:
    return f"{function.__module__}:{function.__name__}"


def _register(
    library: str, judged: Judged, kind: str, case: str, see: str
) -> Callable[[Loop], Loop]:
    def register(function: Loop) -> Loop:
        what = " ".join((function.__doc__ or "").split())
        ENTRIES.append(Entry(_target(function), library, judged, kind, case, see, what))
        return function

    return register
