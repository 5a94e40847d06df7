"""A process that a launcher starts: it imports what its leader does, becomes a rank, and serves."""

from __future__ import annotations

import faulthandler
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from disteval.worlds.environment import detect_outer_world
from disteval.worlds.rank import serve
from disteval.worlds.rank_files import rank_file


def import_path() -> str:
    """Return the folder that holds this library, then the folders that this process imports from.

    Each is a line, for `import_code`.
    """
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return "\n".join([str(Path(__file__).parents[2]), *path])


def import_code(lines: str, what: str) -> str:
    """Return code that begins a Python process which imports from where this one does.

    Args:
        lines: An expression whose value is that of `import_path` here.
        what: What is imported first, from this library also where a file of the user's, such as
            ``disteval.py`` in the working directory, has the library's name.
    """
    return (
        f"import sys; own, *path = {lines}.splitlines(); "
        f"sys.path[:] = [own, *path]; from {what}; sys.path[:] = path; "
    )


def _redirect_output(path: Path) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if isinstance(sys.stdout, io.TextIOWrapper):  # what Ray puts there does not buffer
        sys.stdout.reconfigure(line_buffering=True)


def become_rank(directory: Path, rank: int, on_lost: Callable[[], None] = lambda: None) -> int:
    """Serve as one rank of a world until the leader dismisses it; return the exit status.

    ``on_lost`` is called before the process ends because its leader is gone.
    """
    _redirect_output(rank_file(directory, rank, "out"))
    faulthandler.enable()
    return serve(directory, rank, on_lost=on_lost)


def main() -> int:
    """Serve as one rank of a world; the arguments are its control directory and the rank."""
    directory = Path(sys.argv[1])
    # Under mpirun every rank has the same command, and its number is in the environment.
    outer = detect_outer_world() if len(sys.argv) == 2 else None
    rank = int(sys.argv[2]) if outer is None else outer.rank
    return become_rank(directory, rank)
