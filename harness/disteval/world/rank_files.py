"""The files of a rank in its directory."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a rank writes its stacks to its file."""

Kind = Literal["collectives", "stack", "out", "ended", "ended.part"]


def rank_file(directory: Path, rank: int, kind: Kind) -> Path:
    """Return where a rank logs its collectives, writes its stacks or output, or how it ended."""
    return directory / f"rank-{rank}.{kind}"
