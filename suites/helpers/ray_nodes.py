"""Ray clusters of several nodes on this machine, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from disteval.world import World
from disteval.world.ray import joined_ray, share_of_cpu

from suites.helpers.processes import processes_below, wait_for

# Read when Ray is imported, here and in what is started: nobody without the token gets in.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Ray's workers would give way to every other process, such as another session of tests.
os.environ.setdefault("RAY_worker_niceness", "0")

_ENDING_SECONDS = 20.0


class RayNodes:
    """A Ray head node and other nodes, each with an address and processes of its own.

    Args:
        cpus: CPUs of each node.

    Attributes:
        address: Where the head node is joined.
        folder: Ray's own files.
    """

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        # Short, for sockets lie in it; and Ray's own, which others don't look into.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._orphans: list[int] = []
        try:
            # Ray's client, where it is installed, would listen on a port that others may have.
            client = [f"--ray-client-server-port={_free_port()}"] if find_spec("grpc") else []
            head = ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={self.folder}"]
            self.add(*head, *client)
            found = self.folder / "ray_current_cluster"
            assert wait_for(lambda: found.exists() and found.read_text()), self.log()
            self.address = found.read_text().strip()
        except BaseException:
            self.close()
            raise

    def add(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a node, whose processes form one process group."""
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--block",
            f"--num-cpus={self._cpus}", "--object-store-memory=100000000",
        ]  # fmt: skip
        with (self.folder / f"node-{len(self._nodes)}.log").open("wb") as log:
            node = subprocess.Popen(
                [*command, *options],
                env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._nodes.append(node)
        return node

    def join(self, host: str) -> subprocess.Popen[bytes]:
        """Start another node with an address of its own."""
        return self.add(f"--address={self.address}", f"--node-ip-address={host}")

    def log(self) -> str:
        """Return the output of the nodes."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("node-*.log")))

    def kill_raylet(self, node: subprocess.Popen[bytes]) -> None:
        """Kill the raylet of a node; the other processes of the node have to notice it."""
        below = processes_below(node.pid)
        self._orphans += below
        kill_raylets(below)

    def close(self) -> None:
        """End all processes and remove all files."""
        running = [node for node in self._nodes if node.poll() is None]
        below = [pid for node in running for pid in [*processes_below(node.pid), node.pid]]
        for pid in below + self._orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in running:
            node.wait(_ENDING_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_raylets(pids: Iterable[int]) -> None:
    """Kill those of the processes that are raylets."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/raylet"):
                os.kill(pid, signal.SIGKILL)


def listening(*pids: int) -> list[tuple[str, int]]:
    """Return the addresses, in hexadecimal digits, and the ports at which processes listen."""
    own, found = set(), []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # it has been closed
                    own.add(str(link.readlink()))
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                host, port = fields[1].split(":")
                found.append((host, int(port, 16)))
    return found


def _free_port() -> int:
    """Return a port that is free, and that the system does not give to connections meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def processes_of_ranks(world: World) -> dict[int, int]:
    """Return the processes of the ranks that have reported, by rank."""
    return {rank: hello.pid for rank, hello in world._channel.hellos.items()}


def addresses_of_ranks(worlds: Sequence[World]) -> dict[int, str]:
    """Return the address of each rank's node in the first world, as its raylet was told it."""
    found = {}
    for rank, pid in processes_of_ranks(worlds[0]).items() if worlds else ():
        with contextlib.suppress(OSError, ValueError):  # it or its raylet has ended
            raylet = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            words = Path(f"/proc/{raylet}/cmdline").read_text()
            [found[rank]] = re.findall(r"node_ip_address=([\d.]+)", words)
    return found
