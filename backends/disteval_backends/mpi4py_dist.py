"""MPI through mpi4py, under MPICH and Open MPI."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import termios
import time
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from disteval.contract import Capabilities, No
from disteval.extras import when_used
from disteval.frames import ALIGNMENT, Buffer
from disteval.launched import launched_job
from disteval.templates import BytesBaseDistBackend, Collectives

if TYPE_CHECKING or launched_job() is not None:
    from mpi4py import MPI
else:  # importing it begins MPI, and a leader that no launcher has started is no rank
    MPI = when_used("mpi4py.MPI")

# MPI counts are 32-bit in many installed libraries, so no call moves more bytes than this in all.
_ROUND_BYTES = 1 << 30
_LEAST_ALIGNMENT = 16
_READER_SECONDS = 5.0
_POLL_SECONDS = 0.001

_keyval: int | None = None


class MPI4PyDist(BytesBaseDistBackend):
    """Object collectives over an MPI communicator.

    MPI itself says whether there is a group. The environment variables of launchers do not, because
    they differ between MPI libraries.

    Creating an object of this class on one of several ranks makes an uncaught exception end the
    whole job: its traceback is printed, then the communicator is aborted. Otherwise the other ranks
    would wait in their next collective for ever.

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
        self._has_begun, self._has_ended = MPI.Is_initialized, MPI.Is_finalized
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self._of_comm = _collectives_of(self._comm) if self.is_initialized else Collectives()
        if self.world_size > 1:
            _abort_on_uncaught(self._comm)
            _remove_names_of_shared_memory()

    @property
    def is_initialized(self) -> bool:
        """Whether MPI is running in this process."""
        return bool(self._has_begun()) and not self._has_ended()

    @property
    def rank(self) -> int:
        """The rank in the communicator; 0 when MPI is not running."""
        return int(self._comm.Get_rank()) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The communicator's size; 1 when MPI is not running."""
        return int(self._comm.Get_size()) if self.is_initialized else 1

    @property
    def _collectives(self) -> Collectives:
        return self._of_comm

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        size, count = sizes[0], len(sizes)
        if (
            sizes.count(size) == count
            and not size % _LEAST_ALIGNMENT
            and size * count <= _ROUND_BYTES
        ):
            # MPICH takes half of the time that it takes for Allgatherv.
            memory = _memory(size * count)
            self._comm.Allgather(mine, memory)
            return [memory[start : start + size] for start in range(0, size * count, size)]
        starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
        memory = _memory(starts.pop())
        gathered = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        if len(memory) > _ROUND_BYTES:
            self._gather_in_rounds(memoryview(mine), gathered)
        else:
            self._comm.Allgatherv([mine, MPI.BYTE], [memory, (sizes, starts), MPI.BYTE])
        return gathered

    def _gather_in_rounds(self, mine: memoryview, gathered: Sequence[memoryview]) -> None:
        step = _ROUND_BYTES // self.world_size
        for start in range(0, max(map(len, gathered)), step):
            parts = [data[start : start + step] for data in gathered]
            counts = [len(part) for part in parts]
            received = _memory(sum(counts))
            self._comm.Allgatherv(
                [mine[start : start + step], MPI.BYTE], [received, counts, MPI.BYTE]
            )
            for part, count in zip(parts, counts, strict=True):
                part[:] = received[:count]
                received = received[count:]

    def _broadcast_bytes(self, mine: Buffer, sizes: Sequence[int], src: int) -> Buffer:
        is_sender = self.rank == src
        memory = memoryview(mine) if is_sender else _memory(sizes[src])
        for start in range(0, len(memory), _ROUND_BYTES):
            part = memory[start : start + _ROUND_BYTES]
            self._comm.Bcast([part, MPI.BYTE], root=src)
        return bytearray(memory) if is_sender else memory


def _collectives_of(comm: MPI.Intracomm) -> Collectives:
    """Return the collectives of a communicator, which all Python objects of it share."""
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval()
    found = comm.Get_attr(_keyval)
    if not isinstance(found, Collectives):
        found = Collectives()
        comm.Set_attr(_keyval, found)
    return found


@cache
def _remove_names_of_shared_memory() -> None:
    """Remove the files behind MPICH's shared memory, which all ranks of this host have open now.

    MPICH does so at its end, which ranks that are killed do not reach.
    """
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("mpich_shm_"):
            path.unlink(missing_ok=True)


def _memory(size: int) -> memoryview:
    """Return fresh memory whose pages nothing has touched yet."""
    return np.empty(size, dtype=np.uint8).data


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
            _wait_for_readers()
            comm.Abort(1)

    show_and_abort.aborts_mpi = True  # type: ignore[attr-defined]
    sys.excepthook = show_and_abort


def _wait_for_readers() -> None:
    """Wait until the pipes that take this process's output are empty.

    MPICH's ``mpirun`` ends when it learns of an abort, and what it has not read by then is lost.
    """
    deadline = time.monotonic() + _READER_SECONDS
    for output in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
            while is_pipe and _unread(output) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)


def _unread(pipe: int) -> int:
    """Return how many bytes a pipe holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
