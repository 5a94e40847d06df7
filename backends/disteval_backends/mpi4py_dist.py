"""MPI through mpi4py, under MPICH and Open MPI."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from itertools import accumulate
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
from disteval import framing
from disteval.contract import BaseDistBackend, Capabilities, No
from disteval.errors import HarnessError
from disteval.wire import ALIGNMENT, BLOCK_BYTES
from mpi4py import MPI

# MPI counts are 32-bit in many installed libraries, so no call moves more bytes than this in all.
_ROUND_BYTES = 1 << 30
_LEAST_ALIGNMENT = 16

_keyval: int | None = None


class MPI4PyDist(BaseDistBackend):
    """Object collectives over an MPI communicator.

    Whether there is a group is asked of MPI itself, never read off a launcher's environment
    variables, which differ between MPI libraries.

    Creating one in a world of several ranks makes an uncaught exception end the whole job: its
    traceback is printed, then the communicator is aborted. Without that, the other ranks would wait
    in their next collective for ever.

    Args:
        comm: The communicator; None stands for ``MPI.COMM_WORLD``.
    """

    launcher: ClassVar[str] = "mpirun"
    library: ClassVar[str] = "mpi4py"
    capabilities: ClassVar[Capabilities] = Capabilities(
        detects_lost_ranks=No("mpirun ends the whole job when it has lost a rank"),
        bounded_waits=No("MPI collectives have no timeout"),
    )

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self._calls = _calls_of(self._comm) if self.is_initialized else itertools.count(1)
        if self.world_size > 1:
            _abort_on_uncaught(self._comm)

    @property
    def is_initialized(self) -> bool:
        """Whether MPI is running in this process."""
        return bool(MPI.Is_initialized()) and not MPI.Is_finalized()

    @property
    def rank(self) -> int:
        """The rank in the communicator; 0 when MPI is not running."""
        return int(self._comm.Get_rank()) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The communicator's size; 1 when MPI is not running."""
        return int(self._comm.Get_size()) if self.is_initialized else 1

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        call = self._next_call()
        block, rest = framing.split(obj, call)
        world = self.world_size
        if world == 1:
            return [framing.decode(block, 0, call, bytearray(rest))]
        gathered = bytearray(BLOCK_BYTES * world)
        self._comm.Allgather(block, gathered)
        try:
            return framing.decode_blocks(gathered, call)
        except HarnessError:
            # Whatever it is, when anybody's frame goes on, all ranks are in the next collective.
            view = memoryview(gathered)
            blocks = [view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES)]
            sizes = [framing.size_of(block, rank, call) for rank, block in enumerate(blocks)]
            if max(sizes) == BLOCK_BYTES:
                raise
        rests = self._gather_rests(memoryview(rest), [size - BLOCK_BYTES for size in sizes])
        return [
            framing.decode(block, rank, call, rest)
            for rank, (block, rest) in enumerate(zip(blocks, rests, strict=True))
        ]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        call = self._next_call(src)
        block, rest = framing.split(obj if self.rank == src else None, call)
        if self.rank == src:
            if self.world_size > 1:
                self._comm.Bcast([block, MPI.BYTE], root=src)
                self._broadcast_rest(memoryview(rest), src)
            return framing.decode(block, src, call, bytearray(rest))
        head = bytearray(BLOCK_BYTES)
        self._comm.Bcast([head, MPI.BYTE], root=src)
        memory = _memory(framing.size_of(head, src, call) - BLOCK_BYTES)
        self._broadcast_rest(memory, src)
        return framing.decode(head, src, call, memory)

    def _numbers(self) -> Iterator[int]:
        return self._calls

    def _broadcast_rest(self, memory: memoryview, src: int) -> None:
        for start in range(0, len(memory), _ROUND_BYTES):
            part = memory[start : start + _ROUND_BYTES]
            self._comm.Bcast([part, MPI.BYTE], root=src)

    def _gather_rests(self, mine: memoryview, sizes: list[int]) -> list[memoryview]:
        """What follows each rank's block, in fresh memory."""
        alike = len(set(sizes)) == 1 and sizes[0] % _LEAST_ALIGNMENT == 0
        aligned = sizes if alike else [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        starts = list(accumulate(aligned, initial=0))
        memory = _memory(starts.pop())
        rests = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        if len(memory) <= _ROUND_BYTES:
            if alike:  # MPICH takes half the time for it that it takes for the general one
                self._comm.Allgather([mine, MPI.BYTE], [memory, MPI.BYTE])
            else:
                self._comm.Allgatherv([mine, MPI.BYTE], [memory, (sizes, starts), MPI.BYTE])
            return rests
        step = _ROUND_BYTES // self.world_size
        for start in range(0, max(sizes), step):
            counts = [min(max(size - start, 0), step) for size in sizes]
            came = _memory(sum(counts))
            part = mine[start : start + step]
            self._comm.Allgatherv([part, MPI.BYTE], [came, counts, MPI.BYTE])
            for rest, count in zip(rests, counts, strict=True):
                rest[start : start + count] = came[:count]
                came = came[count:]
        return rests


def _memory(size: int) -> memoryview:
    """Fresh memory, which nobody has touched yet."""
    return np.empty(size, dtype=np.uint8).data


def _calls_of(comm: MPI.Intracomm) -> Iterator[int]:
    """What numbers a communicator's collectives; it lives as long as the communicator does."""
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval()
    found = comm.Get_attr(_keyval)
    if not isinstance(found, itertools.count):
        found = itertools.count(1)
        comm.Set_attr(_keyval, found)
    return found


def _abort_on_uncaught(comm: MPI.Intracomm) -> None:
    """End the whole job when an exception leaves this process's main thread."""
    shown = sys.excepthook
    if getattr(shown, "aborts_mpi", False):
        return

    def show_and_abort(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.stderr.write(
            f"rank {comm.Get_rank()} of {comm.Get_size()} raised; ending the MPI job\n"
        )
        shown(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if MPI.Is_initialized() and not MPI.Is_finalized():
            comm.Abort(1)

    show_and_abort.aborts_mpi = True  # type: ignore[attr-defined]
    sys.excepthook = show_and_abort
