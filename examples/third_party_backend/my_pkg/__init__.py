"""A backend over TCP: every rank sends its frame to rank 0, which sends all frames to everybody."""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import Any, ClassVar

from disteval import framing
from disteval.contract import BaseDistBackend, Rendezvous


class MyBackend(BaseDistBackend):
    """Objects as frames over sockets; any wait ends after `Rendezvous.timeout`."""

    _place: ClassVar[tuple[int, int] | None] = None  # rank and world size
    _peers: ClassVar[list[socket.socket]] = []  # of rank 0: ranks 1, 2, …; of the others: rank 0

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Meet at a port that rank 0 has bound; a token tells ranks of this world from others."""
        if rank == 0:
            token = secrets.token_bytes(32)
            with socket.create_server((rendezvous.host, 0)) as server:
                server.settimeout(rendezvous.timeout)
                rendezvous.publish("meet", f"{server.getsockname()[1]} {token.hex()}")
                met: dict[int, socket.socket] = {}
                while len(met) < world_size - 1:
                    peer = server.accept()[0]
                    peer.settimeout(rendezvous.timeout)
                    hello = _read(peer, 36)
                    if hmac.compare_digest(hello[4:], token):
                        met[int.from_bytes(hello[:4], "little")] = peer
            cls._peers = [met[other] for other in range(1, world_size)]
        else:
            port, token_text = str(rendezvous.lookup("meet")).split()
            peer = socket.create_connection((rendezvous.host, int(port)), rendezvous.timeout)
            peer.sendall(rank.to_bytes(4, "little") + bytes.fromhex(token_text))
            cls._peers = [peer]
        for peer in cls._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cls._place = rank, world_size

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group."""
        for peer in cls._peers:
            peer.close()
        cls._place, cls._peers = None, []

    @property
    def is_initialized(self) -> bool:
        """Whether this process has joined a group."""
        return self._place is not None

    @property
    def rank(self) -> int:
        """This process's rank; 0 when it has joined none."""
        return self._place[0] if self._place else 0

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 when it has joined none."""
        return self._place[1] if self._place else 1

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Gather one object from each rank, in rank order."""
        frames = self._exchange(framing.encode(obj))
        return [framing.decode(frame, rank) for rank, frame in enumerate(frames)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Send rank ``src``'s object to every rank."""
        self._check_src(src)
        frames = self._exchange(framing.encode(obj if self.rank == src else None))
        return framing.decode(frames[src], src)

    def _exchange(self, frame: bytearray) -> list[bytearray]:
        if self.rank > 0:
            _send(self._peers[0], frame)
            return [_receive(self._peers[0], rank) for rank in range(self.world_size)]
        frames = [frame, *(_receive(peer, rank) for rank, peer in enumerate(self._peers, 1))]
        for peer in self._peers:
            for each in frames:
                _send(peer, each)
        return frames


def _send(peer: socket.socket, frame: bytearray) -> None:
    peer.sendall(len(frame).to_bytes(8, "little"))
    peer.sendall(frame)


def _receive(peer: socket.socket, rank: int) -> bytearray:
    size = int.from_bytes(_read(peer, 8), "little")
    framing.check_size(size, rank)  # before memory is taken for it
    return _read(peer, size)


def _read(peer: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    done = 0
    while done < size:
        count = peer.recv_into(memoryview(data)[done:])
        if count == 0:
            raise ConnectionError("the other end is gone")
        done += count
    return data
