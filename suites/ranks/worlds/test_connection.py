"""A leader and its ranks find each other, or say why not, whoever else is at their port."""

from __future__ import annotations

import json
import re
import socket
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import disteval
import pytest
from click.testing import CliRunner
from disteval import WorldError
from disteval.cli import main
from disteval.worlds import World, group, launchers
from disteval.worlds.channel import connection

from suites.mutants.sockets import Sockets


class Disturbed(launchers.LocalLauncher):
    """Has a stranger come before the ranks, and say nothing."""

    name = "disturbed"

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        found = json.loads(connection.read_address(directory))
        self.stranger = socket.create_connection((found["host"], found["port"]))
        return super().start(directory, world_size, threads)


def test_a_stranger_who_says_nothing_keeps_no_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HANDSHAKE_SECONDS", 0.5)
    launcher = Disturbed()
    with World("non_dist", 1, launcher=launcher) as world, launcher.stranger:
        assert world.run(lambda backend: backend.world_size) == [1]


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
    with World("non_dist", 1):
        assert "0 of 1 ranks have started after 0 s" in caplog.messages[0]
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
    with pytest.raises(WorldError) as caught:
        World(Sockets, 30, launcher=Forgetful(), timeout=0.5)
    headline, missing, *_ = str(caught.value).splitlines()
    assert re.fullmatch(
        "[01] of 30 ranks started within 0.5 s; start fewer, or raise the timeout", headline
    )
    assert re.fullmatch(
        r"  (all 30 ranks|ranks 1, 2, .*, 29) never reported to the leader", missing
    )


def test_a_leader_that_is_gone_already_is_told(tmp_path: Path) -> None:
    connection.open_listener(tmp_path, "127.0.0.1")[0].close()
    reason = r"can't be reached at 127\.0\.0\.1:.* it has ended, or runs on another host"
    with pytest.raises(WorldError, match=reason):
        connection.connect(tmp_path, 5)


def test_somebody_else_at_the_port_of_a_leader_that_is_gone_is_told_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        found = {"host": host, "port": port, "key": "00"}
        connection.write_address(tmp_path, json.dumps(found))
        with pytest.raises(WorldError, match="can't be reached at"):
            connection.connect(tmp_path, 0.5)
