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


class Ring:
    """The ring that this process has joined; a ring of one has no connections.

    MLX's threads ask their connections for bytes without a pause, and so take a core for each rank
    that waits. While a collective of ours runs, its connections are made to sleep until there are
    bytes. With five ranks on two cores a gather of 4 KiB then took 0.6 ms instead of 35.

    Args:
        group: MLX's group; None for a ring of one.
        connections: Handles of its connections in this process.
    """

    def __init__(
        self, group: mx.distributed.Group | None, connections: list[socket.socket]
    ) -> None:
        self.rank = group.rank() if group else 0
        self.world_size = group.size() if group else 1
        self.group = group
        self._connections = connections
        self._why_closed = ""
        for connection in connections:
            # If the program has begun another collective, a thread of MLX may have to send, too.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _POLL)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _POLL)

    @classmethod
    def join(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> Ring:
        """Join a ring whose ranks exchange their addresses first."""
        if world_size == 1:
            return cls(None, [])
        return cls(*_join(rank, world_size, rendezvous))

    @classmethod
    def of_launcher(cls) -> Ring | None:
        """Return the ring of the ranks that ``mlx.launch`` has started, if it has."""
        if not {"MLX_RANK", "MLX_HOSTFILE"} <= os.environ.keys():
            return None
        text = Path(os.environ["MLX_HOSTFILE"]).read_text().strip()
        if not text:  # of a single rank
            return None
        group = mx.distributed.init(strict=True, backend="ring")
        nodes = [{_address(each) for each in node} for node in json.loads(text)]
        own, right = nodes[group.rank()], nodes[(group.rank() + 1) % len(nodes)]
        return cls(group, _connections(own, right))

    def all_gather(self, mine: Bytes) -> Bytes:
        """Gather arrays of one length, a row for each rank."""
        gathered = np.empty((self.world_size, len(mine)), dtype=np.uint8)
        with self._collective():
            for start in range(0, len(mine), _PIECE_BYTES):
                piece = slice(start, start + _PIECE_BYTES)
                gathered[:, piece] = self._all_gather(mine[piece])
        return gathered

    def broadcast(self, array: Bytes, src: int) -> Bytes:
        """Pass an array of rank ``src`` from rank to rank, and return it."""
        left, right = (self.rank - 1) % self.world_size, (self.rank + 1) % self.world_size
        with self._collective():
            for start in range(0, len(array), _PIECE_BYTES):
                piece = array[start : start + _PIECE_BYTES]
                if self.rank != src:
                    received = mx.distributed.recv(piece.shape, mx.uint8, left, group=self.group)
                    piece[:] = np.asarray(received)
                if right != src:
                    mx.eval(mx.distributed.send(mx.array(piece), right, group=self.group))
        return array

    def leave(self) -> None:
        """Close the connections; MLX itself keeps the ring for as long as the process lives."""
        self._close("this rank has left it")
        self.group = None

    def _all_gather(self, mine: Bytes) -> Bytes:
        rows = mx.array(mine.reshape(-1, ALIGNMENT))
        gathered = mx.distributed.all_gather(rows, group=self.group)
        mx.eval(gathered)
        return np.asarray(gathered).reshape(self.world_size, -1)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """End the ring after any error in the body."""
        if self._why_closed:
            raise HarnessError(
                f"MLX's ring is closed, because {self._why_closed}; start the ranks again"
            )
        try:
            with self._asleep():
                yield
        except BaseException as error:
            self._close(f"a collective failed with {error!r}")
            raise

    @contextmanager
    def _asleep(self) -> Iterator[None]:
        for connection in self._connections:
            connection.setblocking(True)
        yield
        for connection in self._connections:
            connection.setblocking(False)

    def _close(self, why: str) -> None:
        self._why_closed = self._why_closed or why
        closed, self._connections = self._connections, []
        for connection in closed:
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


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
    connections = _connections({own}, {nodes[(rank + 1) % world_size]})
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


def _connections(own: Set[Address], right: Set[Address]) -> list[socket.socket]:
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
