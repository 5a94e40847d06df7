"""The files of a rank in the control directory, which the ranks of one host share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["collectives", "stack", "out", "ended", "ended.part"]


def rank_file(directory: Path, rank: int, kind: Kind) -> Path:
    """Return where a rank logs its collectives, writes its stacks or output, or how it ended."""
    return directory / f"rank-{rank}.{kind}"
