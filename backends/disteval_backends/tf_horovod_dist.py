"""Horovod with TensorFlow, over Gloo."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from disteval.contract import Rendezvous
from disteval.extras import when_used
from disteval.frames import ALIGNMENT, Buffer
from disteval.templates import BytesBaseDistBackend

if TYPE_CHECKING:
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from horovod.runner.common.util import hosts
    from horovod.runner.http import http_server
else:  # a leader reads this class, and its ranks use them
    hvd = when_used("horovod.tensorflow")
    tf = when_used("tensorflow")
    hosts = when_used("horovod.runner.common.util.hosts")
    http_server = when_used("horovod.runner.http.http_server")


class TFHorovodDist(BytesBaseDistBackend):
    """Object collectives over Horovod's all-gather, to which each rank may give another length."""

    library: ClassVar[str] = "horovod"
    preload: ClassVar[tuple[str, ...]] = ("tensorflow", "horovod.tensorflow")

    _server: ClassVar[http_server.RendezvousHTTPServer | None] = None
    _variables: ClassVar[dict[str, str]] = {}  # those of this group that no launcher has set

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the ranks that `horovodrun` started, or meet at a server that rank 0 starts."""
        super().init_process(rank, world_size, rendezvous)
        if "HOROVOD_GLOO_RENDEZVOUS_PORT" not in os.environ:
            if rank == 0:
                cls._server = _serve(rendezvous.host, world_size)
                rendezvous.publish("horovod", str(cls._server.server_address[1]))
            port = str(rendezvous.lookup("horovod"))
            cls._variables = _environment(rank, world_size, rendezvous.host, port)
            os.environ |= cls._variables
        seconds = str(max(1, int(rendezvous.timeout)))
        os.environ |= {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(rendezvous.timeout) // 2)),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": seconds,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": seconds,
        }
        hvd.init()

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group."""
        if hvd.is_initialized():
            hvd.shutdown()
        for name in cls._variables:  # the next group meets elsewhere
            os.environ.pop(name, None)
        cls._variables = {}
        if cls._server is not None:
            cls._server.shutdown()
            cls._server.server_close()
            cls._server = None

    @property
    def is_initialized(self) -> bool:
        """Whether Horovod is running in this process."""
        return bool(hvd.is_initialized())

    @property
    def rank(self) -> int:
        """Horovod's rank; 0 outside of a group."""
        return int(hvd.rank()) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """Horovod's size; 1 outside of a group."""
        return int(hvd.size()) if self.is_initialized else 1

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        # Parts begin at multiples of the alignment, and no rank gives an empty tensor.
        lengths = [size // ALIGNMENT * ALIGNMENT + ALIGNMENT for size in sizes]
        padded = np.empty(lengths[self.rank], dtype=np.uint8)
        padded[: len(mine)] = np.frombuffer(mine, dtype=np.uint8)
        gathered = hvd.allgather(tf.constant(padded), name="disteval")
        memory = np.array(gathered).data  # a copy, because what the tensor has is read-only
        starts = accumulate(lengths[:-1], initial=0)
        return [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _serve(host: str, world_size: int) -> http_server.RendezvousHTTPServer:
    """Start the server where Gloo's ranks meet; Horovod would start one on all interfaces."""
    server = http_server.RendezvousHTTPServer((host, 0), http_server.RendezvousHandler, False)
    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"{host}:{world_size}"), world_size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _environment(rank: int, world_size: int, host: str, port: str) -> dict[str, str]:
    """Return the variables that `horovodrun` would set for this rank; all ranks count as local."""
    found = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": world_size,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": world_size,
        "HOROVOD_CROSS_RANK": 0,
        "HOROVOD_CROSS_SIZE": 1,
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if host == "127.0.0.1":
        found["HOROVOD_GLOO_IFACE"] = "lo"
    return {name: str(value) for name, value in found.items()}
