"""A leader and its ranks find each other, or say why not, whoever else is at their port."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import time
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import disteval
import pytest
from click.testing import CliRunner
from disteval import WorldError
from disteval.cli import main
from disteval.worlds import World, control_directory, group, launchers
from disteval.worlds.channel import connection, handshake, listener
from disteval.worlds.launchers import local

from suites.mutants.sockets import Sockets

SECONDS = 60


class Disturbed(launchers.LocalLauncher):
    """Has ten strangers come before the ranks and say nothing, and one say a byte at a time."""

    name = "disturbed"

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self._shared = shared
        self.strangers: list[socket.socket] = []

    def prepare(self, world_size: int) -> launchers.Hosts:
        return replace(super().prepare(world_size), shared=self._shared)

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        self.strangers = [visit(directory) for _ in range(11)]
        threading.Thread(target=drip, args=[self.strangers[-1]], daemon=True).start()
        return super().start(directory, world_size, threads)


def visit(directory: Path) -> socket.socket:
    """Connect to a leader without its key."""
    found = json.loads(connection.read_address(directory))
    if found["host"] is not None:
        return socket.create_connection((found["host"], found["port"]), SECONDS)
    with control_directory.opened(directory) as descriptor:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(SECONDS)
        stranger.connect(connection.unix_address(directory, descriptor))
        return stranger


def drip(stranger: socket.socket) -> None:
    """Send a byte, and another before the leader can have lost patience with this one."""
    with contextlib.suppress(OSError):
        while True:
            stranger.sendall(b".")
            time.sleep(0.02)


@pytest.mark.parametrize("shared", [True, False], ids=["unix", "tcp"])
def test_strangers_who_say_nothing_or_little_keep_no_rank_out(shared: bool) -> None:
    launcher = Disturbed(shared)
    with World("non_dist", 1, launcher=launcher) as world:
        assert world.run(lambda backend: backend.world_size) == [1]
        with pytest.raises(ConnectionRefusedError):  # it listens until all ranks are there
            visit(world._directory)
    families = {stranger.family for stranger in launcher.strangers}
    assert families == {socket.AF_UNIX if shared else socket.AF_INET}
    for stranger in launcher.strangers[:10]:
        assert stranger.recv(1) == b""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    # As long as the temporary folders of continuous integration are, and longer than an address.
    long = tmp_path / ("long" * 30)
    long.mkdir(mode=0o700)
    return long


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_a_byte_from_time_to_time_gains_no_time(
    directory: Path, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    for module in (listener, handshake):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with closing(listener.Listener(directory, host, 1)) as door, visit(directory) as stranger:
        assert door.admit(SECONDS) == []
        assert len(door._visitors) == 1
        sent = 0
        while door._visitors:
            stranger.sendall(b".")
            assert door.admit(SECONDS) == []
            sent += 1
            now += listener._VISIT_SECONDS / 20
        assert sent < 32  # bytes of a nonce


def test_a_crowd_of_strangers_gives_way_to_ranks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MOST_STRANGERS", 2)
    with closing(listener.Listener(directory, None, 1)) as door, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(visit(directory)) for _ in range(6)]
        for _ in crowd:
            assert door.admit(SECONDS) == []
        assert [stranger.recv(1) for stranger in crowd[:3]] == [b""] * 3
        assert len(door._visitors) == 3


def test_more_ranks_than_the_system_lets_wait_come_in_one_after_the_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "SOMAXCONN", 0)
    with (
        closing(listener.Listener(directory, None, 20)) as door,
        ThreadPoolExecutor(20) as pool,
        contextlib.ExitStack() as stack,
    ):
        ranks = [pool.submit(connection.connect, directory) for _ in range(20)]
        while not all(rank.done() for rank in ranks):
            door.admit(0.1)
        for rank in ranks:
            stack.enter_context(rank.result())
        assert len(door._visitors) == 20  # their first messages have not come


def test_a_leader_does_not_take_its_own_proof_for_that_of_a_rank() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        visitor = handshake.Visitor(ours, b"the key", SECONDS)
        theirs.sendall(bytes(32))
        assert not visitor.is_rank()
        nonce_and_proof = theirs.recv(64)
        theirs.sendall(nonce_and_proof[32:])
        with pytest.raises(AuthenticationError, match="a rank did not prove"):
            visitor.is_rank()


def test_a_rank_refuses_a_leader_with_another_key() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor() as pool:
        rank = pool.submit(handshake.shake_hands, theirs, b"another key", SECONDS)
        visitor = handshake.Visitor(ours, b"the key", SECONDS)
        assert select.select([ours], [], [], SECONDS)[0]
        assert not visitor.is_rank()
        with pytest.raises(AuthenticationError, match="did not prove that it knows the key"):
            rank.result(SECONDS)


def test_ranks_run_their_leaders_library_whatever_a_file_of_the_users_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "disteval.py").write_text("raise SystemExit('this is not the library')\n")
    (tmp_path / "mine.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with World("non_dist", 1) as world:
        modules = world.run(
            lambda _: [import_module(name).__file__ for name in ("mine", "disteval")]
        )
    assert modules == [[str(tmp_path / "mine.py"), disteval.__file__]]


def test_who_waits_for_ranks_is_told_how_many_have_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "_NOTICE_SECONDS", 0.02)
    monkeypatch.setattr(local, "find_servers", lambda *_: None)  # forked ranks start sooner
    with World("non_dist", 1):
        assert re.match(r"0 of 1 ranks have started after \d s", caplog.messages[0])
    caplog.clear()
    command = ["check", "non_dist", "--world-size", "1", "--rules", "1.1"]
    for options, said in ([], True), (["--quiet"], False):
        CliRunner().invoke(main, [*command, *options])
        assert ("1 ranks have started" in caplog.text) == said
        caplog.clear()


class Forgetful(launchers.LocalLauncher):
    """Starts rank 0 alone."""

    name = "forgetful"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        return super().commands(directory, 1)


def test_ranks_that_never_start_are_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "START_SECONDS", 0.5)
    monkeypatch.setattr(group, "_SECONDS_PER_RANK", 0.0)
    with pytest.raises(WorldError) as caught:
        World(Sockets, 30, launcher=Forgetful(), timeout=0.5)
    headline, missing, *_ = str(caught.value).splitlines()
    assert re.fullmatch(
        "[01] of 30 ranks started within 0.5 s; start fewer, or raise the timeout", headline
    )
    assert re.fullmatch(
        r"  (all 30 ranks|ranks 1, 2, .*, 29) never reported to the leader", missing
    )


def test_a_leader_that_is_gone_already_is_told(directory: Path) -> None:
    for host in (None, "127.0.0.1"):
        listener.Listener(directory, host, 1).close()
        reason = r"no leader .* within 0 s \(ConnectionRefusedError: .*ended"
        with pytest.raises(WorldError, match=reason):
            connection.connect(directory)
        (directory / "leader").unlink(missing_ok=True)


def test_somebody_else_at_the_port_of_a_leader_that_is_gone_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        found = {"host": host, "port": port, "key": "00"}
        connection.write_address(tmp_path, json.dumps(found))
        with pytest.raises(WorldError, match=rf"reached no leader at {host}:{port} .*TimeoutError"):
            connection.connect(tmp_path)


def test_a_busy_leader_is_not_taken_for_one_that_is_out_of_reach(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SILENT_SECONDS", 2)
    large = bytes(1 << 25)  # more than the buffers of both ends hold
    with (
        closing(listener.Listener(directory, "127.0.0.1", 1)) as door,
        ThreadPoolExecutor() as pool,
    ):
        rank = pool.submit(connection.connect, directory)
        while not rank.done():
            door.admit(0.01)
        with closing(rank.result()) as mine:
            sent = pool.submit(mine.send_bytes, large)
            with closing(admitted(door)) as leader:
                # A host that is out of reach would be given up sooner.
                assert not futures.wait([sent], 3.5).done
                assert leader.recv_bytes() == large
            sent.result(SECONDS)


def admitted(door: listener.Listener) -> Connection:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for found in door.admit(0.1):
            return found
    raise AssertionError("the rank was not admitted")
