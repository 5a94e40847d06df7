"""MPI through mpi4py, under MPICH and Open MPI."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, ClassVar

from mpi4py import MPI

from harness import framing
from harness.contract import BaseDistBackend, Capabilities, No

# MPI counts are 32-bit in many installed libraries, so no call moves more bytes than this in all.
_ROUND_BYTES = 1 << 30


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
        frame = framing.encode(obj)
        if self.world_size == 1:
            return [framing.decode(frame, 0)]
        sizes = self._gather_sizes(len(frame))
        frames = [bytearray(size) for size in sizes]
        step = _ROUND_BYTES // self.world_size
        for start in range(0, max(sizes), step):
            counts = [min(max(size - start, 0), step) for size in sizes]
            block = bytearray(sum(counts))
            self._comm.Allgatherv(
                memoryview(frame)[start : start + step], [block, counts, MPI.BYTE]
            )
            view = memoryview(block)
            for target, count in zip(frames, counts, strict=True):
                target[start : start + count] = view[:count]
                view = view[count:]
        return [framing.decode(frame, rank) for rank, frame in enumerate(frames)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        frame = framing.encode(obj) if self.rank == src else bytearray()
        if self.world_size > 1:
            head = bytearray(len(frame).to_bytes(8, "little"))
            self._comm.Bcast([head, MPI.BYTE], root=src)
            size = int.from_bytes(head, "little")
            framing.check_size(size, src)
            if self.rank != src:
                frame = bytearray(size)
            for start in range(0, size, _ROUND_BYTES):
                block = memoryview(frame)[start : start + _ROUND_BYTES]
                self._comm.Bcast([block, MPI.BYTE], root=src)
        return framing.decode(frame, src)

    def _gather_sizes(self, size: int) -> list[int]:
        heads = bytearray(8 * self.world_size)
        self._comm.Allgather([size.to_bytes(8, "little"), MPI.BYTE], [heads, MPI.BYTE])
        sizes = [int.from_bytes(heads[i : i + 8], "little") for i in range(0, len(heads), 8)]
        for rank, announced in enumerate(sizes):
            framing.check_size(announced, rank)
        return sizes


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
