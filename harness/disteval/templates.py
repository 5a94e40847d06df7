"""Templates of backends: the object collectives, over a library that moves bytes or tensors.

A template turns objects into frames, numbers the collectives, refuses a ``src`` that is not a rank,
and decides whether an object is small or large. An adapter says who it is and moves bytes.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from disteval import frames
from disteval.arguments import is_count
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.errors import FrameError, UsageError
from disteval.frames import ALIGNMENT, BLOCK_BYTES, Buffer, Call
from disteval.traces.recorder import note_bytes, open_recorders

Tensor = TypeVar("Tensor")


class Collectives:
    """The collectives of one group on this rank: numbered from 1, and called one at a time.

    They belong to the process that has created this object. Use it as a context manager around each
    collective; entering it returns the collective's number.

    Raises:
        UsageError: This process is a forked child of the rank, or a thread of the rank is in a
            collective of this group. Nothing was sent, and no number was taken.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._free = threading.Lock()
        self._number = 0
        self._thread = 0  # that was the last to begin a collective

    def __enter__(self) -> int:
        # First: a lock that another thread held at the fork stays locked in the child.
        if os.getpid() != self._process:
            raise UsageError(
                f"process {os.getpid()} is a forked child of process {self._process}, which joined "
                f"this group; call collectives in that process only, or join a group in the child"
            )
        if not self._free.acquire(blocking=False):
            if self._thread == threading.get_ident():
                raise UsageError(
                    "this thread is in a collective of this group already, for example because an "
                    "object calls one while it is pickled; call collectives one after the other"
                )
            raise UsageError(
                "another thread of this rank is in a collective of this group, and ranks pair "
                "their collectives by order alone; call collectives from one thread at a time, in "
                "the same order on all ranks, or give each thread a group of its own"
            )
        self._thread = threading.get_ident()
        self._number += 1
        return self._number

    def __exit__(self, *_: object) -> None:
        self._free.release()


class BytesBaseDistBackend(BaseDistBackend):
    """A template for libraries that move bytes.

    A subclass gives `is_initialized`, `rank`, `world_size` and `_all_gather_bytes`, and inherits
    both object collectives. A small object takes one collective of `BLOCK_BYTES` from each rank, a
    larger one a second collective of the lengths that the first one announced. Collectives carry
    their number, so ranks that call different ones get an error instead of each other's objects. A
    call in a forked child, or while another thread of the rank is in a collective, is an error.
    """

    @abstractmethod
    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        """Gather bytes from each rank, into memory that nothing else uses afterwards.

        Args:
            mine: The bytes of this rank. They are not changed.
            sizes: The number of bytes of each rank; all ranks pass the same.

        Returns:
            The bytes of each rank, in rank order.
        """

    def _broadcast_bytes(self, mine: Buffer, sizes: Sequence[int], src: int) -> Buffer:
        """Return the bytes of rank ``src``; the default gathers the bytes of all ranks.

        Arguments are those of `_all_gather_bytes`; the bytes of other ranks may be ignored.
        """
        return self._all_gather_bytes(mine, sizes)[src]

    _own_collectives: ClassVar[Collectives | None] = None

    @property
    def _collectives(self) -> Collectives:
        """The collectives of the group on this rank.

        The default is for libraries that have one group a process, which begins when `init_process`
        is called. Where a process can be in several groups, override it with a `Collectives` for
        each group that lives as long as the membership in it.
        """
        cls = type(self)
        if cls._own_collectives is None:
            cls._own_collectives = Collectives()
        return cls._own_collectives

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Begin to number the collectives of the class at 1. A subclass that joins calls this."""
        cls._own_collectives = Collectives()

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        world_size = self.world_size
        if world_size == 1:
            return [frames.copied(obj)]
        with self._collectives as number:
            call = Call(number, 0)
            block, rest = frames.split(obj, call, self.rank)
            if open_recorders:
                note_bytes(BLOCK_BYTES + len(rest))
            blocks = self._gather_bytes(block, [BLOCK_BYTES] * world_size)
            objects = frames.decode_small(blocks, call)
            if objects is not None:
                return objects
            headers = [frames.read_header(block, rank, call) for rank, block in enumerate(blocks)]
            sizes = [header.rest for header in headers]
            rests = self._gather_bytes(rest, sizes) if any(sizes) else [b""] * world_size
            received = zip(headers, blocks, rests, strict=True)
            return [frames.decode_parts(*parts, rank) for rank, parts in enumerate(received)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        world_size = self.world_size
        self._check_src(src)
        if world_size == 1:
            return frames.copied(obj)
        with self._collectives as number:
            call, own_rank = Call(number, src + 1), self.rank
            mine, rest = frames.split(obj if own_rank == src else None, call, own_rank)
            # Gathered: so every rank, src too, learns of a rank that is in another collective. In a
            # library's own broadcast src would return, and the others would wait for ever.
            blocks = self._gather_bytes(mine, [BLOCK_BYTES] * world_size)
            headers = [frames.read_header(block, rank, call) for rank, block in enumerate(blocks)]
            if open_recorders:
                note_bytes(BLOCK_BYTES + headers[src].rest)
            if size := headers[src].rest:
                sizes = [size if rank == src else 0 for rank in range(world_size)]
                rest = self._broadcast_bytes(rest, sizes, src)
                if rest is None:
                    raise self._wrong("_broadcast_bytes", "None", f"the bytes of rank {src}")
            return frames.decode_parts(headers[src], blocks[src], rest, src)

    def _gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        found = self._all_gather_bytes(mine, sizes)
        return self._gathered("_all_gather_bytes", found, len(sizes))  # type: ignore[no-any-return]

    def _gathered(self, method: str, found: Any, count: int) -> Any:
        """Return what a method of the subclass has gathered, if that is an entry for each rank."""
        if not hasattr(found, "__len__"):
            what = "None" if found is None else f"a {type(found).__name__}"
        elif len(found) != count:
            what = f"{len(found)} entries"
        elif lost := [rank for rank, entry in enumerate(found) if entry is None]:
            what = f"None for ranks {lost}"
        else:
            return found
        raise self._wrong(method, what, f"{count} entries, that of rank r at index r")

    def _wrong(self, method: str, what: str, wanted: str) -> FrameError:
        name = f"{type(self).__name__}.{method}"
        return FrameError(f"{name} returned {what} on rank {self.rank}; it has to return {wanted}")

    def _check_src(self, src: int) -> None:
        if not is_count(src, 0, self.world_size - 1):
            raise UsageError(
                f"src={src!r} is not a rank; give an integer from 0 to {self.world_size - 1}"
            )


class TensorBaseDistBackend(BytesBaseDistBackend, Generic[Tensor]):
    """A template for libraries that move tensors of one shape.

    A subclass gives `is_initialized`, `rank`, `world_size` and the four methods below, and inherits
    both object collectives. Tensors are one-dimensional, of unsigned bytes, and padded to the
    longest.
    """

    @abstractmethod
    def _to_tensor(self, data: Buffer, size: int) -> Tensor:
        """Return a tensor of ``size`` elements that begins with ``data``, in memory of its own."""

    @abstractmethod
    def _to_bytes(self, tensor: Tensor) -> Buffer:
        """Return the elements of a tensor, as a view of its memory where that is possible."""

    @abstractmethod
    def _all_gather_tensor(self, tensor: Tensor) -> Sequence[Tensor]:
        """Gather tensors of one length, one from each rank, in rank order."""

    def _broadcast_tensor(self, tensor: Tensor, src: int) -> Tensor:
        """Return the tensor of rank ``src``; the default gathers the tensors of all ranks.

        Every rank passes a tensor of the same length.
        """
        return self._all_gather_tensor(tensor)[src]

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        found = self._all_gather_tensor(self._padded(mine, sizes))
        gathered = self._gathered("_all_gather_tensor", found, len(sizes))
        return [
            memoryview(self._to_bytes(tensor))[:size]
            for tensor, size in zip(gathered, sizes, strict=True)
        ]

    def _broadcast_bytes(self, mine: Buffer, sizes: Sequence[int], src: int) -> Buffer:
        sent = self._broadcast_tensor(self._padded(mine, sizes), src)
        if sent is None:
            raise self._wrong("_broadcast_tensor", "None", f"the tensor of rank {src}")
        return memoryview(self._to_bytes(sent))[: sizes[src]]

    def _padded(self, data: Buffer, sizes: Sequence[int]) -> Tensor:
        # Rows of one gathered tensor are then aligned, and so are the arrays in them.
        return self._to_tensor(data, -(-max(sizes) // ALIGNMENT) * ALIGNMENT)
