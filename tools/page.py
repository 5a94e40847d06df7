"""The end of each tool that writes a part of a page of docs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(page: Path, whole: Callable[[str], str], source: str) -> None:
    """Write the page as it has to be; with ``--check``, exit with 1 where it is not so.

    Args:
        page: The file.
        whole: Returns the text that the page has to have, from the one that it has.
        source: What the page is written from, in the plural.
    """
    there = page.read_text()
    wanted = whole(there)
    if "--check" not in sys.argv[1:]:
        page.write_text(wanted)
    elif there != wanted:
        tool = Path(sys.argv[0]).name
        sys.exit(f"{page.name} is not as the {source} are; run python tools/{tool}")
