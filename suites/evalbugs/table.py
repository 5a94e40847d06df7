"""The loops of the corpus, and what each finding is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Judged = Literal["sound", "defect", "documented", "user"]
"""What a loop shows: nothing; a defect of its library; what the library documents; or a mistake of
those who write such a loop."""


class Entry(NamedTuple):
    """One loop of the corpus.

    Attributes:
        name: The name of the function.
        library: The library that it is about.
        judged: See `Judged`.
        what: The loop in one sentence.
    """

    name: str
    library: str
    judged: Judged
    what: str


ENTRIES: list[Entry] = []


def loop(library: str, judged: Judged) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a loop of the corpus."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        what = (function.__doc__ or "").strip()
        ENTRIES.append(Entry(function.__name__, library, judged, what))
        return function

    return register
