"""The collective log of a rank: how many collectives it has entered and left, and the last one.

Each rank writes a few bytes of a shared file at every collective. The leader reads the file without
the rank's help, so it is right also about a rank that is frozen or stuck in a library.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disteval.contract import BaseDistBackend

_RECORD = struct.Struct("<QQ32s")  # entered, left, name of the last one entered


@dataclass(frozen=True)
class Position:
    """The position of a rank in its sequence of collectives.

    Attributes:
        entered: Collectives entered so far.
        left: Collectives left so far.
        name: The last collective entered; empty before the first.
    """

    entered: int
    left: int
    name: str

    @property
    def inside(self) -> bool:
        """Whether the rank is in a collective."""
        return self.entered > self.left


def read_position(path: Path) -> Position:
    """Read the position from a rank's collective log; a rank without a log has entered nothing."""
    if not path.exists() or path.stat().st_size < _RECORD.size:
        return Position(0, 0, "")
    entered, left, name = _RECORD.unpack_from(path.read_bytes())
    return Position(entered, left, name.rstrip(b"\0").decode())


class LoggedBackend(BaseDistBackend):
    """A backend that records every collective before it enters it and after it has left it.

    Args:
        inner: The backend that does the work.
        path: The file of the collective log; it is created.
    """

    def __init__(self, inner: BaseDistBackend, path: Path) -> None:
        self.inner = inner
        path.write_bytes(bytes(_RECORD.size))
        with path.open("r+b") as file:
            self._record = mmap.mmap(file.fileno(), _RECORD.size)
        self._entered = self._left = 0
        self._name = b""

    @property
    def is_initialized(self) -> bool:
        """Whether the inner backend is in a group."""
        return self.inner.is_initialized

    @property
    def rank(self) -> int:
        """The inner backend's rank."""
        return self.inner.rank

    @property
    def world_size(self) -> int:
        """The inner backend's world size."""
        return self.inner.world_size

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Record and call the inner backend's all-gather."""
        self._enter(b"all_gather_object")
        try:
            return self.inner.all_gather_object(obj)
        finally:
            self._leave()

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Record and call the inner backend's broadcast."""
        self._enter(b"broadcast_object")
        try:
            return self.inner.broadcast_object(obj, src)
        finally:
            self._leave()

    def _enter(self, name: bytes) -> None:
        self._entered += 1
        self._name = name
        self._write()

    def _leave(self) -> None:
        self._left += 1
        self._write()

    def _write(self) -> None:
        _RECORD.pack_into(self._record, 0, self._entered, self._left, self._name)
