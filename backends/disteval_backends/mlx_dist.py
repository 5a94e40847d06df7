"""MLX's distributed ring, over TCP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from disteval.contract import Capabilities, No, Rendezvous

from disteval_backends._host_arrays import Bytes, HostArrayDist
from disteval_backends._mlx_ring import Ring


class MLXDist(HostArrayDist):
    """Object collectives over the ring of `mlx.core.distributed`, in host memory.

    After an error MLX takes what a neighbour sends for its next collective as its part of the last
    one, and later collectives wait for ever. So an error here closes this rank's connections, which
    is an error on every rank, and the ring is not used again.
    """

    library: ClassVar[str] = "mlx"
    capabilities: ClassVar[Capabilities] = Capabilities(
        bounded_waits=No("MLX's ring waits for a rank without a limit"),
        joins_again=No("MLX keeps its first ring for as long as the process lives"),
    )
    preload: ClassVar[tuple[str, ...]] = ("mlx.core",)

    _ring: ClassVar[Ring | None] = None

    def __init__(self) -> None:
        if self._ring is None:
            type(self)._ring = Ring.of_launcher()

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join a ring in which each rank listens on its ``rendezvous.own_host``."""
        super().init_process(rank, world_size, rendezvous)
        cls._ring = Ring.join(rank, world_size, rendezvous)

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the ring."""
        if cls._ring is not None:
            cls._ring.leave()
            cls._ring = None

    @property
    def is_initialized(self) -> bool:
        """Whether this process has joined a ring, by `init_process` or as `mlx.launch` says."""
        return self._ring is not None

    @property
    def rank(self) -> int:
        """The rank in the ring; 0 outside of one."""
        return 0 if self._ring is None else self._ring.rank

    @property
    def world_size(self) -> int:
        """The size of the ring; 1 outside of one."""
        return 1 if self._ring is None else self._ring.world_size

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        assert self._ring is not None  # a world of one has no collectives
        return list(self._ring.all_gather(tensor))

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        assert self._ring is not None
        return self._ring.broadcast(tensor, src)
