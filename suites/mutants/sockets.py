"""A correct backend over TCP, whose rank 0 publishes the port that the system chose."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from disteval.contract import Rendezvous
from disteval.templates import BytesBaseDistBackend

_SIZE = struct.Struct("<Q")


class Sockets(BytesBaseDistBackend):
    """A backend in which rank 0 receives the bytes of all ranks and sends them to every rank."""

    _rank: ClassVar[int] = 0
    _world_size: ClassVar[int] = 1
    _joined: ClassVar[bool] = False
    _peers: ClassVar[list[socket.socket]] = []  # of rank 0: ranks 1, 2, …; of others: rank 0

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        if rank == 0:
            with socket.create_server((rendezvous.host, 0)) as server:
                server.settimeout(rendezvous.timeout)
                rendezvous.publish("port", str(server.getsockname()[1]))
                cls._peers = sorted(
                    (server.accept()[0] for _ in range(1, world_size)),
                    key=lambda peer: _SIZE.unpack(read(peer, _SIZE.size)),
                )
        else:
            port = int(rendezvous.lookup("port"))
            cls._peers = [socket.create_connection((rendezvous.host, port), rendezvous.timeout)]
            cls._peers[0].sendall(_SIZE.pack(rank))
        for peer in cls._peers:
            peer.settimeout(rendezvous.timeout)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cls._rank, cls._world_size, cls._joined = rank, world_size, True

    @classmethod
    def finalize_process(cls) -> None:
        for peer in cls._peers:
            peer.close()
        cls._rank, cls._world_size, cls._joined, cls._peers = 0, 1, False, []

    is_initialized = property(lambda self: self._joined)
    rank = property(lambda self: self._rank)
    world_size = property(lambda self: self._world_size)

    def _all_gather_bytes(self, mine: Any, sizes: Sequence[int]) -> list[Any]:
        if self._rank == 0:
            gathered = [
                bytearray(mine),
                *(read(peer, size) for peer, size in zip(self._peers, sizes[1:], strict=True)),
            ]
            for peer in self._peers:
                for each in gathered:
                    peer.sendall(each)
            return gathered
        self._peers[0].sendall(mine)
        return [read(self._peers[0], size) for size in sizes]


def read(peer: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = peer.recv_into(view)
        if not count:
            raise ConnectionError("the other end is gone")
        view = view[count:]
    return data
