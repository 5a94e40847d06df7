"""The folder of a trace, before anything is recorded: the leader checks it and numbers worlds."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from pathlib import Path

from disteval.arguments import check_output_folder, unwritable
from disteval.errors import UsageError
from disteval.traces.place import Place, cap_for, own_clock, own_wall

MERGED = "trace.json"
"""The file that ``disteval trace`` writes, with all rows."""

NAME = re.compile(r"world-(\d{1,9})-(?:rank-(\d{5,9})|leader)(?:-(\d{1,9}))?\.jsonl")
"""The names of the files that ranks and the leader write."""


def file_name(world: int, rank: int | None, attempt: int = 1) -> str:
    """Return the name of the file of a rank, or of the leader where ``rank`` is None."""
    row = "leader" if rank is None else f"rank-{rank:05d}"
    return f"world-{world}-{row}{f'-{attempt}' if attempt > 1 else ''}.jsonl"


class TraceFolder:
    """A folder in which one run records its trace; the worlds of the run share it.

    Args:
        path: The folder; it is made if it does not exist.
        option: The option or argument that named it, for the message.

    Raises:
        UsageError: It holds a trace already, or can't be written.
    """

    def __init__(self, path: str | Path, option: str = "trace") -> None:
        # Ranks may work in other folders.
        self.path = Path(path).absolute()
        check_new(option, self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(option, self.path, error) from error
        self._run = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def new_world(self, title: str, world_size: int) -> Place:
        """Return the place of the next world, whose time begins now."""
        return Place(
            str(self.path), self._run, next(self._numbers), title, world_size,
            time.monotonic_ns(), own_clock(), own_wall(), {}, cap_for(world_size),
        )  # fmt: skip


Trace = str | Path | TraceFolder | None
"""A folder for a trace; None records none."""


def as_folder(trace: Trace, option: str = "trace") -> TraceFolder | None:
    """Return the folder of a trace; a path becomes a new one, see `TraceFolder`."""
    return TraceFolder(trace, option) if isinstance(trace, (str, Path)) else trace


def check_new(option: str, path: Path) -> None:
    """Raise UsageError if an option's folder holds a trace, or can't be written."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{option} {path} is a file; give the name of a folder")
    check_output_folder(option, path)
    found = sorted(file.name for file in path.glob("world-*.jsonl") if NAME.fullmatch(file.name))
    if found:
        raise UsageError(
            f"{option} {path} holds the trace of an earlier run ({found[0]}); give another folder, "
            f"or remove it"
        )
