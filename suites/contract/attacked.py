"""A world of gloo in which a process of another user takes the place of rank 1.

Run it as root in a network namespace of its own. It prints the outcome as JSON. The stranger knows
what any user of the host can see: the listening ports in /proc/net/tcp, and gloo's protocol.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from disteval import frames
from disteval.contract import Rendezvous
from disteval.world import World
from disteval_backends.torch_dist import TorchCPUDist

from suites.helpers.pickles import Calls

TRIES = 16  # gloo lets one of two ranks connect to the other, and the stranger needs rank 0 to wait
_SECONDS = 60.0
_TIMEOUT = 4.0
_NOBODY = 65534
_PREAMBLE = struct.Struct("<6Q")  # bytes in all, opcode, slot, offset, length, remote offset
_SEND, _SEND_READY, _RECEIVE_READY = range(1, 4)


class Late(TorchCPUDist):
    """Lets rank 1 join after the stranger has connected to rank 0."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if rank == 1:
            _await((Path(os.environ["STRANGER_DIR"]) / "connected").exists)
        super().init_process(rank, world_size, rendezvous)


def gather(backend: Any) -> Any:
    return backend.all_gather_object(backend.rank)


def main(folder: Path) -> None:
    """Join groups until the stranger has taken part in a collective of one of them."""
    os.environ["STRANGER_DIR"] = str(folder)
    folder.chmod(0o777)
    _raise_loopback()
    stranger = os.fork()
    if not stranger:
        _be_stranger(folder)
    results = []
    with World(None, 2, launcher="local", timeout=_SECONDS) as world:
        (folder / "begin").touch()
        while len(results) < TRIES and not (folder / "served").exists():
            begin = time.monotonic()
            try:
                world.join(Late, backend_timeout=_TIMEOUT)
                outcome = world.run(gather)
            except Exception as error:
                outcome = str(error)
            results.append((outcome, time.monotonic() - begin))
            if not world.is_open:
                break
            world.leave()
            (folder / "connected").unlink(missing_ok=True)
    os.kill(stranger, 9)
    os.waitpid(stranger, 0)
    marked = (folder / "marked").exists()
    print(json.dumps([(folder / "served").exists(), marked, results]))


def _be_stranger(folder: Path) -> None:
    """Connect to every new listener as rank 1, and answer with a frame of the stranger's own."""
    try:
        os.chdir(folder)  # whose parents may be closed to other users
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        frame = bytes(frames.encode(Calls(os.mkdir, str(folder / "marked")), frames.Call(1), 1))
        _await(Path("begin").exists)
        known = _listeners()
        while True:
            _await(lambda: bool(_listeners() - known))
            port = min(_listeners() - known, default=0)
            known.add(port)
            # A rank resets the connection when it leaves its group.
            with suppress(OSError), socket.socket() as rank:
                rank.connect(("127.0.0.1", port))
                rank.sendall((1).to_bytes(8, "little"))
                Path("connected").touch()
                _serve(rank, frame)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _serve(rank: socket.socket, frame: bytes) -> None:
    """Send the frame whenever the rank waits for bytes, until it closes the connection."""
    stream = rank.makefile("rb")
    while len(preamble := stream.read(_PREAMBLE.size)) == _PREAMBLE.size:
        _, opcode, slot, _, length, _ = _PREAMBLE.unpack(preamble)
        if opcode == _RECEIVE_READY:
            sent = frame[:length].ljust(length, b"\0")
            rank.sendall(_PREAMBLE.pack(_PREAMBLE.size + length, _SEND, slot, 0, length, 0) + sent)
            Path("served").touch()
        elif opcode == _SEND_READY:
            rank.sendall(_PREAMBLE.pack(_PREAMBLE.size, _RECEIVE_READY, slot, 0, length, 0))
        else:
            stream.read(length)


def _listeners() -> set[int]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {int(each[1].split(":")[1], 16) for each in fields if each[3] == "0A"}


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.002)


def _raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS


if __name__ == "__main__":
    main(Path(sys.argv[1]))
