"""The files of a rank in the control directory, which the ranks of one host share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def rank_file(directory: Path, rank: int, kind: Literal["collectives", "stack", "out"]) -> Path:
    """Return where a rank logs its collectives, or writes its stacks or its output."""
    return directory / f"rank-{rank}.{kind}"
