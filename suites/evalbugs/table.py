"""What the audit must say about a loop of the corpus: decorators, which `suites.findings` reads.

They change nothing: `suites.findings.table.entries` reads them from the text of a module, because
a module imports the libraries that it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Judged = Literal["sound", "defect", "documented", "user"]
"""What a loop shows: nothing; a defect of its library; what the library's documentation or source
says that it does; or a mistake of those who write such a loop."""

Loop = Callable[..., Any]


def sound(library: str) -> Callable[[Loop], Loop]:
    """Say that a loop is right with the newest release of a library."""
    return lambda loop: loop


def wrong(
    library: str, judged: Judged, kind: str, case: str, see: str = ""
) -> Callable[[Loop], Loop]:
    """Say what the audit finds in a loop with the newest release of a library.

    Args:
        library: The distribution that the loop is about.
        judged: See `Judged`.
        kind: The kind of the first finding.
        case: The smallest case that is wrong.
        see: The documentation or thread that says so; an empty text where none was found.
    """
    return lambda loop: loop


def older(release: str, judged: Judged, kind: str, case: str, see: str) -> Callable[[Loop], Loop]:
    """Say what the audit finds with an older release; it belongs above `sound` or `wrong`."""
    return lambda loop: loop
