"""The Ray cluster that this process is in.

It is an existing one, or one that is started for a while.

A process can be in one Ray cluster. Its users join and leave it; when the last one leaves, a Ray
that was started here ends. A cluster that the program has joined before is used and not left.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from disteval.errors import UsageError, WorldError
from disteval.extras import needs
from disteval.files import write_atomically
from disteval.host import available_cores, interrupts_held_back
from disteval.world import control_directory
from disteval.world.address import LOOPBACK
from disteval.world.control_directory import ControlDirectory
from disteval.world.processes import Processes
from disteval.world.rank import import_code, import_path

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
_OBJECT_STORE_BYTES = 1 << 27  # orders travel over a world's own connections, so Ray stores little
_ANSWER_SECONDS = 5.0
_SHUTDOWN_SECONDS = 20.0
_START_SECONDS = 90.0
_POLL_SECONDS = 0.02
FINEST = 1e-4
"""Ray counts CPUs no finer."""

_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

_lock = threading.RLock()
_users = 0
_began = False  # whether this module has joined or started a cluster
_directory: ControlDirectory | None = None  # of a Ray that this module has started
_processes: Processes | None = None


_HEAD = import_code("sys.argv[1]", "disteval.world.ray.cluster import serve_head") + (
    "serve_head(sys.argv[2])"
)


def import_ray() -> Any:
    """Import Ray.

    Raises:
        LibraryMissingError: Ray is not installed; says how to install it.
    """
    with needs("the launcher 'ray'", "ray"):
        import ray
    return ray


@contextlib.contextmanager
def joined_ray(address: str | None = None) -> Iterator[None]:
    """Stay in a Ray cluster, so that worlds that follow one another need not each join it."""
    join(address)
    try:
        yield
    finally:
        leave()


def join(address: str | None = None) -> None:
    """Join a cluster or start one; every call needs a call of `leave`.

    Args:
        address: ``auto`` or ``host:port`` of an existing cluster. None stands for the
            environment variable ``RAY_ADDRESS``, and without it for a Ray of this machine alone,
            started now.

    Raises:
        LibraryMissingError: Ray is not installed.
        UsageError: The address is not that of a node, or this process is in another cluster.
        WorldError: No cluster answers at the address.
    """
    global _users
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    if "://" in wanted:
        raise UsageError(
            f"{wanted!r} is no node of a Ray cluster; run this on one of its nodes, with 'auto' "
            f"or host:port as the address"
        )
    ray = import_ray()
    with _lock:
        if ray.is_initialized():
            _check_same_cluster(ray, address)
        else:
            _begin(ray, wanted)
        _users += 1


def leave() -> None:
    """Leave the cluster; the last user to leave ends a Ray that was started here."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _end()


def started_here() -> bool:
    """Return whether this module started the cluster, which therefore can't grow."""
    return _directory is not None


def bounded(function: Callable[[], object], seconds: float) -> bool:
    """Call a function that may wait for ever, in a thread of its own; return if it was in time."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _check_same_cluster(ray: Any, address: str | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", here):
        raise UsageError(
            f"this process is in the Ray cluster at {here} already, and can't be in the one at "
            f"{address} too; leave the address out, or call ray.shutdown() before"
        )


def _begin(ray: Any, address: str) -> None:
    """Join or start a cluster, which `_end` leaves or ends."""
    global _began
    atexit.register(_end)
    _began = True
    try:
        if address == "local":
            _start(ray)
        else:
            _check_listens(address)
            ray.init(address=address, **_QUIET)
    except BaseException as error:
        _end()
        if not isinstance(error, Exception):
            raise
        # The last line of the cause alone mentions a missing token, for example.
        reason = str(error.__cause__ or error).strip().rpartition("\n")[2].rstrip(".")
        if address == "local":
            raise WorldError(f"Ray could not be started here: {reason}") from error
        raise WorldError(
            f"the Ray cluster at {address!r} could not be joined: {reason}; start one with "
            f"`ray start --head`, or leave the address out to use this machine alone"
        ) from error


def _check_listens(address: str) -> None:
    """Refuse an address where nobody listens, for which Ray would wait many minutes."""
    host, _, port = address.rpartition(":")
    if not host:  # auto
        return
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers there: {error}") from None


def _start(ray: Any) -> None:
    """Start a cluster whose processes belong to a helper, and join it."""
    global _directory, _processes
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with interrupts_held_back():
        _processes = Processes()
        # A short name, since the paths of Ray's sockets have at most 107 characters.
        path = control_directory.folder() / f"ray-{secrets.token_hex(3)}"
        _processes.keep(path)
        _directory = control_directory.create(path)
    _make_token(_directory.path)
    address, output = _directory.path / "address", _directory.path / "output"
    command = [sys.executable, "-c", _HEAD, import_path(), str(_directory.path)]
    _processes.start(command, dict(os.environ), output)
    deadline = time.monotonic() + _START_SECONDS
    while not address.exists():
        if time.monotonic() > deadline or _processes.how_ended(0, _POLL_SECONDS) is not None:
            raise WorldError(output.read_text(errors="replace").strip() or "it took too long")
    with _on_loopback():
        ray.init(address=address.read_text(), _node_ip_address=LOOPBACK, **_QUIET)


def serve_head(folder: str) -> None:
    """Start a cluster of this machine alone, write its address to a folder, and keep it."""
    ray = import_ray()
    with _on_loopback():
        context = ray.init(
            address="local",
            num_cpus=available_cores(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            # Ray lets every user write to this folder, so it lies in a private one.
            _temp_dir=str(Path(folder, "r")),
            _node_ip_address=LOOPBACK,
            **_QUIET,
        )
    address = context.address_info["gcs_address"].encode()
    write_atomically(Path(folder, "address"), lambda file: file.write(address))
    threading.Event().wait()


def _make_token(folder: Path) -> None:
    """Give the new cluster a token of its own, unless the user has chosen a token, or none.

    Ray would leave one in the home directory, where others may be allowed to read it.
    """
    if any(os.environ.get(name) for name in _AUTH):
        return
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    _read_authentication()


def _read_authentication() -> None:
    raylet: Any = importlib.import_module("ray._raylet")
    with contextlib.suppress(AttributeError):  # an older Ray has no tokens
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on the loopback address, which it replaces by the host's unless it may not."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _end() -> None:
    """Leave or end the cluster that this module has joined or started."""
    global _began, _directory, _processes
    atexit.unregister(_end)
    directory, _directory = _directory, None
    began, _began = _began, False
    if began:
        bounded(import_ray().shutdown, _SHUTDOWN_SECONDS)
    token = None if directory is None else str(directory.path / "token")
    if token is not None and os.environ.get("RAY_AUTH_TOKEN_PATH") == token:
        del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"]
        _read_authentication()
    if _processes is not None:
        _processes.end()  # some of Ray's helpers would take minutes
    if directory is not None:
        directory.remove()
    if _processes is not None:
        _processes.close()
        _processes = None


def share_of_cpu(nodes: Sequence[float], parts: int) -> float:
    """Return the largest share of a CPU, up to one, that a cluster can give to each of some ranks.

    Args:
        nodes: CPUs of each node; a rank runs on one node.
        parts: The number of ranks; where no node has a CPU, the share is one.
    """
    if sum(int(cpus) for cpus in nodes) >= parts or not any(nodes):
        return 1.0
    shares = {min(1.0, cpus / ranks) for cpus in nodes for ranks in range(1, parts + 1)} - {0.0}
    held = (s for s in shares if sum(int(cpus / s + FINEST) for cpus in nodes) >= parts)
    return max(FINEST, math.floor(max(held) / FINEST) * FINEST)


def cluster_cpus() -> list[float]:
    """Return the CPUs of each node of the cluster that this process is in."""
    return [size_of(node)["CPU"] for node in alive_nodes(import_ray())]


def count_of(number: float, what: str) -> str:
    """Return a number of things in words."""
    return f"{number:g} {what}{'s' * (number != 1)}"


def alive_nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the nodes of the cluster that are there, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def size_of(node: dict[str, Any]) -> dict[str, float]:
    """Return the CPUs and GPUs of a node."""
    return {kind: node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU")}
