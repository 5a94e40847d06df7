"""The collective log of a rank: how many collectives it has entered and left, and the last one.

Each rank writes a few bytes of a shared file at every collective. The leader reads the file without
the rank's help, so it is right also about a rank that is frozen or stuck in a library.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from disteval import traces
from disteval.contract import BaseDistBackend

T = TypeVar("T")

_RECORD = struct.Struct("<QQ32s")  # entered, left, name of the last one entered
_GATHER, _BROADCAST = b"all_gather_object", b"broadcast_object"


@dataclass(frozen=True)
class CallPosition:
    """The numbers of collectives that a rank has entered and left, and the last one's name."""

    entered: int
    left: int
    name: str

    @property
    def inside(self) -> bool:
        """Whether the rank is in a collective."""
        return self.entered > self.left


NOWHERE = CallPosition(0, 0, "")


def read_position(path: Path) -> CallPosition:
    """Read the position from a rank's collective log; a rank without a log has entered nothing."""
    if not path.exists() or path.stat().st_size < _RECORD.size:
        return NOWHERE
    entered, left, name = _RECORD.unpack_from(path.read_bytes())
    return CallPosition(entered, left, name.rstrip(b"\0").decode())


class LoggedBackend(BaseDistBackend):
    """A backend that records every collective before it enters it and after it has left it.

    If this thread records a trace, the collectives are recorded there, too.

    Args:
        inner: The backend.
        path: The file of the log; None keeps it in memory.
    """

    def __init__(self, inner: BaseDistBackend, path: Path | None) -> None:
        self.inner = inner
        if path is None:
            self._record = mmap.mmap(-1, _RECORD.size)
        else:
            path.write_bytes(bytes(_RECORD.size))
            with path.open("r+b") as file:
                self._record = mmap.mmap(file.fileno(), _RECORD.size)
        self._entered = self._left = 0
        self._recorder = traces.current()
        if self._recorder is not None:
            self._recorder.group += 1
            self._group = self._recorder.group

    @property
    def is_initialized(self) -> bool:
        """Whether the inner backend is in a group."""
        return self.inner.is_initialized

    @property
    def rank(self) -> int:
        """The inner backend's rank, as a plain int also where a library has others."""
        return _plain(self.inner.rank)

    @property
    def world_size(self) -> int:
        """The inner backend's world size."""
        return _plain(self.inner.world_size)

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Record and call the inner backend's all-gather."""
        return self._logged(_GATHER, None, self.inner.all_gather_object, obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Record and call the inner backend's broadcast."""
        return self._logged(_BROADCAST, src, self.inner.broadcast_object, obj, src)

    def _logged(self, name: bytes, root: int | None, collective: Callable[..., T], *args: Any) -> T:
        self._entered += 1
        _RECORD.pack_into(self._record, 0, self._entered, self._left, name)
        if self._recorder is not None:
            self._recorder.bytes, begin = 0, time.monotonic_ns()
        try:
            return collective(*args)
        finally:
            self._left += 1
            _RECORD.pack_into(self._record, 0, self._entered, self._left, name)
            if self._recorder is not None:
                self._recorder.add(
                    "collective", name.decode(), begin, time.monotonic_ns(), number=self._left,
                    group=self._group, root=root, bytes=self._recorder.bytes,
                )  # fmt: skip


def _plain(number: Any) -> int:
    try:
        return index(number)
    except TypeError:  # whoever checks the backend should see it
        return number  # type: ignore[no-any-return]
