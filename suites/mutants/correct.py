"""Unusual backends that are correct: a rule that calls one of them broken is wrong."""

from __future__ import annotations

import threading
import time
import zlib
from typing import Any, ClassVar

import numpy as np
from disteval import RankError
from disteval.contract import BaseDistBackend, Capabilities, No
from disteval.templates import TensorBaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

from suites.mutants.sockets import Sockets

CORRECT: list[type[BaseDistBackend]] = [Sockets]


def correct(cls: Any) -> Any:
    """Add a class to `CORRECT`."""
    CORRECT.append(cls)
    return cls


@correct
class Slow(ThreadsDist):
    """Sleeps before each exchange, longer on higher ranks."""

    def _exchange(self, frame: Any) -> Any:
        time.sleep(0.0005 * (self.rank + 1))
        return super()._exchange(frame)


@correct
class TinyChunks(ThreadsDist):
    """Sends a frame in eight pieces."""

    def _exchange(self, frame: Any) -> Any:
        step = max(1, -(-len(frame) // 8))
        pieces = [bytes(frame)[i : i + step] for i in range(0, 8 * step, step)]
        parts = [super(TinyChunks, self)._exchange(piece) for piece in pieces]
        return [b"".join(part[rank] for part in parts) for rank in range(self.world_size)]


@correct
class Compressed(ThreadsDist):
    """Sends compressed frames."""

    def _exchange(self, frame: Any) -> Any:
        return [zlib.decompress(f) for f in super()._exchange(zlib.compress(frame, 1))]


@correct
class BroadcastsByGathering(ThreadsDist):
    """Broadcasts by gathering the bytes of all ranks and returning those of src."""

    def _broadcast_bytes(self, mine: Any, sizes: Any, src: int) -> Any:
        return self._all_gather_bytes(mine, sizes)[src]


@correct
class GathersByBroadcasting(ThreadsDist):
    """Gathers by one broadcast from each rank, and raises an error after all of them.

    Another thread of the rank waits meanwhile.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        detects_mismatches=No("one of the broadcasts of an all-gather may match")
    )

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def all_gather_object(self, obj: Any) -> list[Any]:
        gathered, errors = [], []
        with self.lock:
            for src in range(self.world_size):
                try:
                    gathered.append(super().broadcast_object(obj, src))
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return gathered


@correct
class ListOfItsOwnMaking(ThreadsDist):
    """Fills the list of results in reverse order, and counts in integers of NumPy."""

    rank = property(lambda self: np.int64(super().rank))
    world_size = property(lambda self: np.int64(super().world_size))

    def all_gather_object(self, obj: Any) -> list[Any]:
        gathered = super().all_gather_object(obj)
        result: list[Any] = [None] * len(gathered)
        for rank in reversed(range(len(gathered))):
            result[rank] = gathered[rank]
        return result


@correct
class OwnErrors(ThreadsDist):
    """Raises an exception of another class for a wrong src."""

    def _check_src(self, src: int) -> None:
        if not 0 <= src < self.world_size:
            raise IndexError("no such rank")


@correct
class TensorTemplate(TensorBaseDistBackend[Any], ThreadsDist):
    """A backend of the tensor template over NumPy arrays, with padding that is not zero."""

    def _to_tensor(self, data: Any, size: int) -> Any:
        padding = np.full(size - len(data), 0xAB, np.uint8)
        return np.concatenate([np.frombuffer(data, np.uint8), padding])

    def _to_bytes(self, tensor: Any) -> Any:
        return tensor.tobytes()

    def _all_gather_tensor(self, tensor: Any) -> list[Any]:
        gathered = [np.frombuffer(f, np.uint8) for f in self._exchange(tensor.tobytes())]
        if len({len(other) for other in gathered}) > 1:
            raise ValueError("tensors of one all-gather must have one length")
        return gathered


@correct
class DeclaresWhatItCannot(ThreadsDist):
    """Declares that an error stays on its rank, which is true of all ranks but the first ones."""

    first: ClassVar[dict[tuple[int, int], BaseDistBackend]] = {}
    capabilities: ClassVar[Capabilities] = Capabilities(
        propagates_errors=No("objects are serialised before ranks communicate")
    )

    def all_gather_object(self, obj: Any) -> list[Any]:
        try:
            return super().all_gather_object(obj)
        except RankError as error:
            works = self is self.first.setdefault((self.rank, self.world_size), self)
            if works or error.rank == self.rank or "serialise" not in error.what:
                raise
            return [None] * self.world_size
