"""What a process that a launcher started does: become a rank, and serve."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

from harness.worlds.outer import detect_outer_world
from harness.worlds.rank import output_path, serve


def _redirect_output(path: Path) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def main() -> int:
    """Serve as one rank of a world; the arguments are its control directory and the rank.

    Returns:
        The exit status.
    """
    directory = Path(sys.argv[1])
    # Under mpirun the command is the same for every rank, and mpirun tells each its number.
    outer = detect_outer_world() if len(sys.argv) == 2 else None
    rank = int(sys.argv[2]) if outer is None else outer.rank
    _redirect_output(output_path(directory, rank))
    faulthandler.enable()
    return serve(directory, rank)
