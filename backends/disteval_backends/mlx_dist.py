"""MLX's distributed ring, over TCP."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import mlx.core as mx
import numpy as np
from disteval.contract import Capabilities, No, Rendezvous
from disteval.errors import HarnessError
from disteval.frames import ALIGNMENT

from disteval_backends._host_arrays import Bytes, HostArrayDist

# From 512 KiB on, MLX sends in both directions over each connection.
_PIECE_BYTES = 448 << 10
_LISTEN_SECONDS = 3.0
_POLL = struct.pack("ll", 0, 1000)  # a timeval of a millisecond

Address = tuple[str, int]


class MLXDist(HostArrayDist):
    """Object collectives over the ring of `mlx.core.distributed`, in host memory.

    After an error MLX takes what a neighbour sends for its next collective as its part of the last
    one, and later collectives wait for ever. So an error here closes this rank's connections, which
    is an error on every rank, and the ring is not used again.

    MLX's threads ask their connections for bytes without a pause, and so take a core for each rank
    that waits. While a collective of ours runs, its connections are made to sleep until there are
    bytes. With five ranks on two cores a gather of 4 KiB then took 0.6 ms instead of 35.
    """

    library: ClassVar[str] = "mlx"
    capabilities: ClassVar[Capabilities] = Capabilities(
        bounded_waits=No("MLX's ring waits for a rank without a limit"),
        joins_again=No("MLX keeps its first ring for as long as the process lives"),
    )
    preload: ClassVar[tuple[str, ...]] = ("mlx.core",)

    _has_joined: ClassVar[bool] = False
    _rank: ClassVar[int] = 0
    _size: ClassVar[int] = 1
    _group: ClassVar[mx.distributed.Group | None] = None  # a ring of one has none
    _connections: ClassVar[list[socket.socket]] = []  # this process's handles of the ring's sockets
    _why_closed: ClassVar[str] = ""

    def __init__(self) -> None:
        cls = type(self)
        if cls._has_joined or not {"MLX_RANK", "MLX_HOSTFILE"} <= os.environ.keys():
            return
        if hosts := Path(os.environ["MLX_HOSTFILE"]).read_text().strip():  # else a single rank
            group = mx.distributed.init(strict=True, backend="ring")
            nodes = [{_address(each) for each in node} for node in json.loads(hosts)]
            own, right = nodes[group.rank()], nodes[(group.rank() + 1) % len(nodes)]
            cls._take(group, _connections_of(own, right))

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join a ring in which each rank listens on its ``rendezvous.own_host``."""
        super().init_process(rank, world_size, rendezvous)
        if world_size > 1:
            cls._take(*_join(rank, world_size, rendezvous))
        else:
            cls._has_joined = True

    @classmethod
    def _take(cls, group: mx.distributed.Group, connections: list[socket.socket]) -> None:
        cls._group, cls._connections, cls._why_closed = group, connections, ""
        cls._rank, cls._size, cls._has_joined = group.rank(), group.size(), True
        for connection in connections:
            # If the program has begun another collective, a thread of MLX may have to send, too.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _POLL)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _POLL)

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the ring; MLX itself keeps it for as long as the process lives."""
        cls._close("this rank has left it")
        cls._has_joined, cls._rank, cls._size, cls._group = False, 0, 1, None

    @classmethod
    def _close(cls, why: str) -> None:
        cls._why_closed = cls._why_closed or why
        closed, cls._connections = cls._connections, []
        for connection in closed:
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def is_initialized(self) -> bool:
        """Whether this process has joined a ring, by `init_process` or as `mlx.launch` says."""
        return self._has_joined

    @property
    def rank(self) -> int:
        """The rank in the ring; 0 outside of one."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The size of the ring; 1 outside of one."""
        return self._size

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        gathered = np.empty((self.world_size, len(tensor)), dtype=np.uint8)
        with self._collective():
            for start in range(0, len(tensor), _PIECE_BYTES):
                piece = slice(start, start + _PIECE_BYTES)
                rows = mx.array(tensor[piece].reshape(-1, ALIGNMENT))
                found = mx.distributed.all_gather(rows, group=self._group)
                mx.eval(found)
                gathered[:, piece] = np.asarray(found).reshape(self.world_size, -1)
        return list(gathered)

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        """Pass a tensor from rank to rank."""
        left, right = (self.rank - 1) % self.world_size, (self.rank + 1) % self.world_size
        with self._collective():
            for start in range(0, len(tensor), _PIECE_BYTES):
                piece = tensor[start : start + _PIECE_BYTES]
                if self.rank != src:
                    received = mx.distributed.recv(piece.shape, mx.uint8, left, group=self._group)
                    piece[:] = np.asarray(received)
                if right != src:
                    mx.eval(mx.distributed.send(mx.array(piece), right, group=self._group))
        return tensor

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Have waits sleep in the body, and end the ring after any error in it."""
        if self._why_closed:
            raise HarnessError(
                f"MLX's ring is closed, because {self._why_closed}; start the ranks again"
            )
        try:
            for connection in self._connections:
                connection.setblocking(True)
            yield
            for connection in self._connections:
                connection.setblocking(False)
        except BaseException as error:
            self._close(f"a collective failed with {error!r}")
            raise


def _join(
    rank: int, world_size: int, rendezvous: Rendezvous
) -> tuple[mx.distributed.Group, list[socket.socket]]:
    """Let MLX connect the ring; return it, and handles of its two connections here."""
    with _reserved(rendezvous.own_host) as own:
        rendezvous.publish(f"mlx {rank}", json.dumps(own))
        found = (json.loads(rendezvous.lookup(f"mlx {other}")) for other in range(world_size))
        nodes = [(str(host), int(port)) for host, port in found]
        if rank == world_size - 1:
            # It connects first, and then each rank to the next one, which has to listen by then:
            # MLX sleeps for a second after a refusal, and keeps the refused socket open.
            _wait_for_listeners(nodes[:-1])
        # MLX waits for its neighbours without a limit, and all ranks have come here.
        with _environment(rank, nodes):
            group = mx.distributed.init(strict=True, backend="ring")
    connections = _connections_of({own}, {nodes[(rank + 1) % world_size]})
    if len(connections) != 2:
        raise HarnessError(
            "MLX was in a ring before this rank joined one, and does not leave it; start a new "
            "process, and do not call mlx.core.distributed.init in it"
        )
    return group, connections


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextmanager
def _reserved(host: str) -> Iterator[Address]:
    """Keep a free port for MLX, which takes no socket of ours, and shares its port if asked to.

    Nobody else gets the port who asks for any free one.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
        yield held.getsockname()


def _wait_for_listeners(addresses: Sequence[Address]) -> None:
    """Wait until somebody listens at each address of this host, for some seconds at most."""
    until = time.monotonic() + _LISTEN_SECONDS
    while not all(map(_is_taken, addresses)) and time.monotonic() < until:
        time.sleep(0.001)


def _is_taken(address: Address) -> bool:
    """Return whether somebody listens at an address, or it is another host's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return True
    return False


@contextmanager
def _environment(rank: int, nodes: Sequence[Address]) -> Iterator[None]:
    """Tell MLX this rank and the addresses of all, for as long as it reads them."""
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".json"))
        json.dump([[f"{host}:{port}"] for host, port in nodes], file)
        file.flush()
        told = {"MLX_RANK": str(rank), "MLX_HOSTFILE": file.name}
        before = {name: os.environ[name] for name in told if name in os.environ}
        os.environ |= told
        try:
            yield
        finally:
            for name in told:
                del os.environ[name]
            os.environ |= before


def _connections_of(own: Set[Address], right: Set[Address]) -> list[socket.socket]:
    """Return new handles of this process's connections at its own addresses, and to others."""
    found = []
    for entry in list(Path("/dev/fd").iterdir()):
        with suppress(OSError):  # it is closed by now, or not connected
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with ExitStack() as stack:
                handle = stack.enter_context(socket.socket(fileno=os.dup(int(entry.name))))
                if handle.getpeername() in right or handle.getsockname() in own:
                    found.append(handle)
                    stack.pop_all()
    return found
