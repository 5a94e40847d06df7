"""What the audit must say about a loop of the corpus: decorators, which `suites.findings` reads.

`suites.findings.table.entries` reads them from the text of a module, because a module imports the
libraries that it is about. docs/findings.md says whose fault each wrong result is, and who says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Loop = Callable[..., Any]


def sound(library: str, assumes: tuple[str, ...] = ()) -> Callable[[Loop], Loop]:
    """Say that a loop is right with the newest release of a library, where that is assumed."""

    def assuming(loop: Loop) -> Loop:
        loop.assumes = assumes  # type: ignore[attr-defined]
        return loop

    return assuming


def sound_where(assumed: str, library: str, loop: Loop) -> Loop:
    """Return a loop that is right with the newest release where one more thing is assumed."""
    return sound(library, (assumed,))(lambda case: loop(case))


def wrong(
    library: str, kind: str, case: str, assumes: tuple[str, ...] = ()
) -> Callable[[Loop], Loop]:
    """Say of which kind a loop's first finding is, with the newest release, and its smallest case.

    The kind is empty where the loop is right.
    """
    return sound(library, assumes)


def older(release: str, kind: str, case: str) -> Callable[[Loop], Loop]:
    """Say the same of an older release, of no kind where it is right; above `sound` or `wrong`."""
    return lambda loop: loop
