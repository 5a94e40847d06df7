"""The files of a rank in the control directory, which the ranks of one host share."""

from __future__ import annotations

from pathlib import Path


def collective_log_path(directory: Path, rank: int) -> Path:
    """Return where a rank records its collectives."""
    return directory / f"rank-{rank}.collectives"


def stack_path(directory: Path, rank: int) -> Path:
    """Return where a rank writes the stacks of its threads when it gets the stack signal."""
    return directory / f"rank-{rank}.stack"


def output_path(directory: Path, rank: int) -> Path:
    """Return where the standard output and the standard error of a started rank go."""
    return directory / f"rank-{rank}.out"
