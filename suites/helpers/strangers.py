"""Strangers who connect to a world without its key, or plant a folder in the place of its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from disteval.world import LocalLauncher, control_directory
from disteval.world.address import LOOPBACK
from disteval.world.channel.link import Address, read_address, unix_address

SECONDS = 60
STRANGER = 12345


def visit(directory: Path) -> socket.socket:
    """Connect to the leader whose control directory this is, without its key."""
    found = read_address(directory)
    if found.host is not None:
        return socket.create_connection((found.host, found.port), SECONDS)
    with control_directory.opened(directory) as descriptor:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(SECONDS)
        stranger.connect(unix_address(directory, descriptor))
        return stranger


def drip(stranger: socket.socket) -> None:
    """Send a byte, and another before the leader can have lost patience with this one."""
    with suppress(OSError):
        while True:
            stranger.sendall(b".")
            time.sleep(0.02)


def reflect(stranger: socket.socket) -> None:
    """Give the leader its own proof back as that of a rank."""
    with suppress(OSError):
        stranger.sendall(bytes(32))
        nonce_and_proof = stranger.recv(64, socket.MSG_WAITALL)
        stranger.sendall(nonce_and_proof[32:])


def send_nonsense(stranger: socket.socket) -> None:
    """Send a megabyte of zeros."""
    with suppress(OSError):
        stranger.sendall(bytes(1 << 20))


class Disturbed(LocalLauncher):
    """Has strangers come before the ranks, more than a leader keeps waiting.

    Args:
        over_network: Whether the world listens on TCP.
    """

    name = "disturbed"

    def __init__(self, over_network: bool) -> None:
        super().__init__()
        self._over_network = over_network
        self.strangers: list[socket.socket] = []
        self.place = Path()

    def prepare(self, world_size: int) -> Address | None:
        """See `Launcher.prepare`."""
        return Address(LOOPBACK) if self._over_network else None

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """See `Launcher.start`."""
        self.place = directory
        works: list[Callable[[socket.socket], None] | None] = [None] * 70
        for work in (*works, drip, reflect, send_nonsense):
            self.strangers.append(visit(directory))
            if work is not None:
                threading.Thread(target=work, args=self.strangers[-1:], daemon=True).start()
        return super().start(directory, world_size, threads)


def control_folder(parent: Path) -> Path:
    """Return where this user's control directories are, if DISTEVAL_CONTROL_DIR is the parent."""
    return parent / f"disteval-{os.geteuid()}"


def link(path: Path) -> None:
    """Plant a link to a folder of this user."""
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def give_away(path: Path) -> None:
    """Plant a folder of another user."""
    path.mkdir(mode=0o700)
    try:
        os.chown(path, STRANGER, STRANGER)
    except PermissionError:
        pytest.skip("only root can make a directory of another user")


def let_others_in(path: Path) -> None:
    """Plant a folder that others can read."""
    path.mkdir()
    path.chmod(0o755)


def write_file(path: Path) -> None:
    """Plant a file."""
    path.touch(0o600)


PLANTED: dict[Callable[[Path], None], str] = {
    link: "symbolic link",
    give_away: f"user {STRANGER}",
    let_others_in: "0755",
    write_file: "Not a directory",
}
"""What a stranger may plant, and what an error says of it."""
