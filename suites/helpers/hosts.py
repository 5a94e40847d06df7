"""Two hosts for tests: namespaces with a network, processes, a host name and a /tmp of their own.

A cable joins them, and nothing leaves them. Each host is held by a process that reads from this
one, so that both hosts, and every process on them, end with this process however it ends.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import pytest
from disteval.evaluation import borrowed

from suites.helpers.processes import processes_below, wait_for

INTERFACE = "cable"
NAMES = ("alpha", "beta")
ADDRESSES = ("10.77.0.1", "10.77.0.2")

_SECONDS = 60
_USER = ["unshare", "--user", "--map-root-user"]
_HOST = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
# Folders that both hosts need are kept where they are, also below /tmp.
_SET_UP = """
set -e
hostname "$1"; shift
ip link set lo up
mount -t tmpfs -o mode=1777 tmpfs /mnt
printf '127.0.0.1 localhost\\n%s alpha\\n%s beta\\n' "$1" "$2" > /mnt/.hosts; shift 2
mount --bind /mnt/.hosts /etc/hosts
for kept in "$@"; do
    case "$kept" in /tmp/*)
        mkdir -p "/mnt/${kept#/tmp/}"; mount --bind "$kept" "/mnt/${kept#/tmp/}";;
    esac
done
mount --rbind /mnt /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t sysfs sysfs /sys
echo ready
exec cat
"""
# As ssh is called: perhaps options, the host, and the command. Its streams and exit status are the
# command's. A host can't enter the other one, whose processes it does not see, so this asks.
_SHELL = """#!{python} -IS
import json, socket, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words.pop(0)
asked = socket.socket(socket.AF_UNIX)
asked.connect({path!r})
socket.send_fds(asked, [json.dumps(words).encode()], [0, 1, 2])
sys.exit(int(asked.recv(99) or b"255"))
"""
# A cable that brings each packet late, or not at all: not every kernel has netem.
_CABLE = """
import contextlib, ctypes, fcntl, heapq, os, random, select, struct, sys, time
name, *hosts, delay, loss = sys.argv[1:]
ends, on_the_way, draw = [], [], random.Random(1)
for host in hosts:
    with open(f"/proc/{host}/ns/net") as space:
        assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
    ends.append(os.open("/dev/net/tun", os.O_RDWR))
    fcntl.ioctl(ends[-1], 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1001))
print("ready", flush=True)
while True:
    left = max(0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
    for end in select.select([0, *ends], [], [], left)[0]:
        packet = os.read(end, 1 << 16) if end else sys.exit()
        if draw.random() >= float(loss):
            heapq.heappush(on_the_way, (time.monotonic() + float(delay), sum(ends) - end, packet))
    while on_the_way and on_the_way[0][0] <= time.monotonic():
        with contextlib.suppress(OSError):  # that end is down
            os.write(*heapq.heappop(on_the_way)[1:])
"""


class Hosts:
    """Two hosts, ``alpha`` and ``beta``, and the cable between them.

    Args:
        shared: A folder that both hosts see.
        delay: Seconds that the cable takes to bring a packet.
        loss: How much of all packets it loses, as a fraction.
    """

    def __init__(self, shared: Path, delay: float = 0.0, loss: float = 0.0) -> None:
        _skip_without_namespaces()
        self._started: list[subprocess.Popen[str]] = []
        self._inside: list[int] = []
        self.shared = str(shared)
        kept = [str(shared), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])]
        try:
            user = self._start(["unshare", "--user", "sh", "-c", "echo ready; exec cat"])
            _map_root(user.pid)
            self._enter = ["nsenter", f"--target={user.pid}", "--user", "--preserve-credentials"]
            for name in NAMES:
                words = ["sh", "-c", _SET_UP, "sh", name, *ADDRESSES, *kept]
                holder = self._start([*self._enter, *_HOST, *words])
                self._inside.append(processes_below(holder.pid)[0])
            one, other = map(str, self._inside)
            if delay or loss:
                words = [INTERFACE, one, other, str(delay), str(loss)]
                self._start([*self._enter, sys.executable, "-ISc", _CABLE, *words])
            else:
                peer = ["type", "veth", "peer", "name", INTERFACE, "netns", other]
                self._ip(0, "link", "add", INTERFACE, *peer)
            for host in range(2):
                self._ip(host, "address", "add", f"{ADDRESSES[host]}/24", "dev", INTERFACE)
                self.set_link(host, "up")
            # The kernel takes up to a second to say so, and until then UCX, which MPICH uses,
            # takes the interface for one that is not there.
            assert wait_for(lambda: all(map(self._is_joined, range(2))), _SECONDS)
        except BaseException:
            self.close()
            raise

    def on_host(
        self, host: int, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command in the shared folder on a host; its output goes to a pipe.

        Args:
            host: 0 for ``alpha``, 1 for ``beta``.
            command: The command's words.
            variables: More environment variables of the command.
        """
        process = subprocess.Popen(
            [*self.entering(host), "sh", "-c", 'cd "$0" && exec "$@"', self.shared, *command],
            env=os.environ | {"TMPDIR": "/tmp"} | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def start_ranks(
        self,
        places: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        only: int | None = None,
    ) -> list[subprocess.Popen[str]]:
        """Start a command on each host whose number ``places`` has, as ranks of one job.

        Each is told what MPICH's mpirun tells its ranks, and ``variables``. If ``only`` is not
        None, that rank alone is started.
        """
        started = []
        for rank, place in enumerate(places):
            if only not in (None, rank):
                continue
            told = {"PMI_RANK": str(rank), "PMI_SIZE": str(len(places))}
            told["MPI_LOCALNRANKS"] = str(places.count(place))
            told["PYTHONPATH"] = os.pathsep.join(sys.path)
            started.append(self.on_host(int(place), command, told | dict(variables)))
        return started

    def entering(self, host: int) -> list[str]:
        """Return the beginning of a command that runs the words after it on a host."""
        there = [f"--target={self._inside[host]}", "--user", "--preserve-credentials"]
        return ["nsenter", *there, "--mount", "--net", "--pid", "--uts"]

    @contextmanager
    def remote_shell(self) -> Iterator[Path]:
        """Provide a program that runs a command on a host, as ssh does, while the block runs."""
        path, program = Path(self.shared, "shell.socket"), Path(self.shared, "shell")
        program.write_text(_SHELL.format(python=sys.executable, path=str(path)))
        program.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            threading.Thread(target=self._answer, args=[server], daemon=True).start()
            try:
                yield program
            finally:
                server.shutdown(socket.SHUT_RDWR)
                path.unlink()

    def _answer(self, server: socket.socket) -> None:
        with suppress(OSError):  # until the server is shut down
            while True:
                asked, _ = server.accept()
                threading.Thread(target=self._run_for, args=[asked], daemon=True).start()

    def _run_for(self, asked: socket.socket) -> None:
        with asked:
            data, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 3)
            name, *words = json.loads(data)
            there = self.entering(NAMES.index(name))
            streams = dict(zip(("stdin", "stdout", "stderr"), descriptors, strict=True))
            command = subprocess.Popen([*there, "sh", "-c", " ".join(words)], **streams)
            for descriptor in descriptors:
                os.close(descriptor)
            with suppress(OSError):  # nobody waits for it any more
                asked.sendall(str(command.wait()).encode())

    def set_link(self, host: int, state: str) -> None:
        """Set a host's end of the cable ``up`` or ``down``."""
        self._ip(host, "link", "set", INTERFACE, state)

    def close(self) -> None:
        """End both hosts and everything on them."""
        for process in reversed(self._started):
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.kill()
        for process in reversed(self._started):
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a process that ends with this one, and wait until it is ready."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        _await_ready(process)
        return process

    def _is_joined(self, host: int) -> bool:
        """Return whether a host sees its cable as up."""
        read = [*self.entering(host), "cat", f"/sys/class/net/{INTERFACE}/operstate"]
        told = subprocess.run(read, capture_output=True, text=True, check=True, timeout=_SECONDS)
        return told.stdout.strip() in ("up", "unknown")

    def _ip(self, host: int, *words: str) -> None:
        there = [f"--target={self._inside[host]}", "--user", "--preserve-credentials", "--net"]
        subprocess.run(["nsenter", *there, "ip", *words], check=True, timeout=_SECONDS)


@functools.cache
def _skip_without_namespaces() -> None:
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"not run: there is no {program}, which two hosts are made with")
    probe = "mount -t tmpfs tmpfs /mnt && mount -t sysfs sysfs /sys"
    probe += " && ip link add name a type veth peer name b"
    words = [*_USER, *_HOST, "sh", "-c", probe]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if tried.returncode:
        pytest.skip(f"not run: no host can be made of namespaces here: {tried.stderr.strip()}")


def _map_root(pid: int) -> None:
    """Let this user be root in the user namespace of a process."""
    ids = {"uid": os.geteuid(), "gid": os.getegid()}
    if ids["uid"]:
        Path(f"/proc/{pid}/setgroups").write_text("deny")  # as Linux demands of others than root
    for kind, number in ids.items():
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {number} 1")


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{process.args} did not say that it is ready"


def ended(process: subprocess.Popen[str], seconds: float) -> str:
    """Return what a process on a host printed until its end, which must come in time."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired as late:
        # What it has started may hold the pipe until the hosts end.
        printed = (late.stdout or b"").decode(errors="replace")
        pytest.fail(f"not ended within {seconds:g} s: {printed}")


def pretend_hosts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function by which a rank that is a thread says on which host it takes itself to be.

    Only what an evaluation in leases asks for is changed.
    """
    hosts: dict[int, str] = {}
    monkeypatch.setattr(borrowed, "this_machine", lambda: hosts[threading.get_ident()])
    return lambda name: hosts.__setitem__(threading.get_ident(), name)
