"""The printed lines of ranks, as log lines of their leader: ``[rank 1] ...``.

Reading them costs a thread, so it is done only where somebody has set the level of the logger
``disteval.world.ranks``, or of ``disteval`` above it, to INFO or below. The root logger's level
does not count, because frameworks lower it. Ranks that are threads, or that somebody else has
started, print for themselves.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from disteval.text import visible
from disteval.world.control_directory import rank_file

_LOGGER = logging.getLogger("disteval.world.ranks")
_SECONDS = 0.1
_MOST_BYTES = 1 << 20  # of one rank at one look, and in one line


class OutputLog:
    """Logs the printed lines of all ranks of one world, until it is closed."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self._paths = [rank_file(directory, rank, "out") for rank in range(world_size)]
        self._read = [0] * world_size
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if _is_asked_for():
            self._thread.start()

    def close(self) -> None:
        """Log the lines that are left; the files may be removed afterwards."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._look(last=True)

    def _watch(self) -> None:
        while not self._closed.wait(_SECONDS):
            self._look()

    def _look(self, last: bool = False) -> None:
        for rank, path in enumerate(self._paths):
            if not path.exists():  # it has not started yet, or prints for itself
                continue
            begin = self._read[rank]
            with path.open("rb") as file:
                file.seek(begin)
                while last or self._read[rank] < begin + _MOST_BYTES:
                    data = file.readline(_MOST_BYTES)
                    # A line that is being written waits for its end, unless it is far too long.
                    whole = data.endswith(b"\n") or len(data) == _MOST_BYTES
                    if not data or not (whole or last):
                        break
                    self._read[rank] += len(data)
                    for line in data.decode(errors="replace").splitlines():
                        _LOGGER.info("[rank %d] %s", rank, visible(line))


def _is_asked_for() -> bool:
    logger = _LOGGER
    while logger.level == logging.NOTSET and logger.parent is not None:
        logger = logger.parent
    return logger is not logging.root and _LOGGER.isEnabledFor(logging.INFO)
