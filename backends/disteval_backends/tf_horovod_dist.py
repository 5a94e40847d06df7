"""Horovod with TensorFlow, over Gloo."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from disteval import framing
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.wire import ALIGNMENT, Call
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer


class TFHorovodDist(BaseDistBackend):
    """Object collectives over Horovod's all-gather, which takes a length of its own from each rank.

    One all-gather a call, whatever the sizes: frames tell their length. A broadcast is an
    all-gather to which the other ranks give an empty frame.
    """

    library: ClassVar[str] = "horovod"

    # In eager mode Horovod pairs calls by their order alone, so two threads must not interleave.
    _one_at_a_time: ClassVar[threading.Lock] = threading.Lock()
    _server: ClassVar[RendezvousHTTPServer | None] = None
    _calls: ClassVar[Iterator[int]] = itertools.count(1)

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the ranks that `horovodrun` started, or meet at a server that rank 0 starts."""
        if "HOROVOD_GLOO_RENDEZVOUS_PORT" not in os.environ:
            if rank == 0:
                cls._server = _serve(rendezvous.host, world_size)
                rendezvous.publish("horovod", str(cls._server.server_address[1]))
            os.environ.update(
                _environment(rank, world_size, rendezvous.host, str(rendezvous.lookup("horovod")))
            )
        seconds = str(max(1, int(rendezvous.timeout)))
        os.environ |= {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(rendezvous.timeout) // 2)),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": seconds,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": seconds,
        }
        hvd.init()
        cls._calls = itertools.count(1)

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group."""
        if hvd.is_initialized():
            hvd.shutdown()
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

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        call = self._next_call()
        frames = self._gather(obj, call)
        return [framing.decode(frame, rank, call) for rank, frame in enumerate(frames)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        call = self._next_call(src)
        frames = self._gather(obj if self.rank == src else None, call)
        return framing.decode(frames[src], src, call)

    def _numbers(self) -> Iterator[int]:
        return self._calls

    def _gather(self, obj: Any, call: Call) -> list[memoryview]:
        """Every rank's frame, in rank order, in memory of their own."""
        mine = framing.encode_array(framing.Numbered(obj, call), ALIGNMENT)
        view = mine.data
        if self.is_initialized:
            with self._one_at_a_time:
                # Through DLPack a tensor shares the array's memory.
                tensor = tf.experimental.dlpack.from_dlpack(mine.__dlpack__())
                view = _memory_of(hvd.allgather(tensor, name="disteval"))
        frames = []
        for rank in range(self.world_size):
            size = framing.size_of(view, rank, call)
            frames.append(view[:size])
            view = view[-(-size // ALIGNMENT) * ALIGNMENT :]
        return frames


def _memory_of(tensor: tf.Tensor) -> memoryview:
    """The memory of a uint8 tensor that nobody else holds, writable, without a copy."""
    array = np.asarray(tensor)  # shares it, but calls it read-only
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.held_by = tensor  # type: ignore[attr-defined]  # it lives as long as its memory
    return memoryview(memory).cast("B")


def _serve(host: str, world_size: int) -> RendezvousHTTPServer:
    """Start the server where Gloo's ranks find each other; Horovod's own takes all interfaces."""
    server = RendezvousHTTPServer((host, 0), RendezvousHandler, False)
    server.init(get_host_assignments(parse_hosts(f"{host}:{world_size}"), world_size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _environment(rank: int, world_size: int, host: str, port: str) -> dict[str, str]:
    """What `horovodrun` would set for this rank; all ranks count as one host's."""
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
