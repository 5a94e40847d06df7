"""Which collectives a rank has entered and left, readable by the leader even when the rank hangs.

Each rank writes a few bytes of a shared file at every collective. Nothing is asked of the rank when
they are read, so they tell the truth about one that is frozen or stuck in a library.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disteval.contract import BaseDistBackend

Identity = tuple[bool, int, int]
"""Whether a backend is in a group, its rank, and its world size."""

_RECORD = struct.Struct("<QQ32s")  # entered, left, name of the last one entered


@dataclass(frozen=True)
class Position:
    """Where a rank is in the sequence of collectives.

    Attributes:
        entered: Collectives entered so far.
        left: Collectives left so far.
        name: The last one entered; empty when there was none.
    """

    entered: int
    left: int
    name: str

    @property
    def inside(self) -> bool:
        """Whether the rank is in a collective."""
        return self.entered > self.left


def read_position(path: Path) -> Position:
    """Read what the rank of that journal wrote last; nothing entered when there is no journal."""
    if not path.exists() or path.stat().st_size < _RECORD.size:
        return Position(0, 0, "")
    entered, left, name = _RECORD.unpack_from(path.read_bytes())
    return Position(entered, left, name.rstrip(b"\0").decode())


def identity_of(backend: BaseDistBackend) -> Identity:
    """Who a backend says that it is."""
    return bool(backend.is_initialized), backend.rank, backend.world_size


class JournalledBackend(BaseDistBackend):
    """A backend that notes every collective before it enters it and after it has left it.

    Args:
        inner: The backend that does the work.
        path: The journal's file; it is created.
        before: Who the backend said it was before ``init_process``, or what it raised.
    """

    def __init__(self, inner: BaseDistBackend, path: Path, before: Identity | str) -> None:
        self.inner = inner
        self.before = before
        path.write_bytes(bytes(_RECORD.size))
        with path.open("r+b") as file:
            self._record = mmap.mmap(file.fileno(), _RECORD.size)
        self._entered = self._left = 0
        self._name = b""

    @property
    def is_initialized(self) -> bool:
        """The inner backend's answer."""
        return self.inner.is_initialized

    @property
    def rank(self) -> int:
        """The inner backend's answer."""
        return self.inner.rank

    @property
    def world_size(self) -> int:
        """The inner backend's answer."""
        return self.inner.world_size

    def all_gather_object(self, obj: Any) -> list[Any]:
        """The inner backend's, noted."""
        self._enter(b"all_gather_object")
        try:
            return self.inner.all_gather_object(obj)
        finally:
            self._leave()

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """The inner backend's, noted."""
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
