"""A rank that was forked is as one that was started, and none is forked where it can't be."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import WorldError
from disteval.worlds import World, fork_client, forked
from disteval.worlds.launchers import LocalLauncher

from suites.helpers.processes import is_running, left_over, wait_for


def started_not_forked(world: World) -> bool:
    launcher: Any = world._launcher
    return not any(isinstance(one, fork_client.Forked) for one in launcher._processes)


def what_a_process_is(_: Any) -> dict[str, Any]:
    return {
        "variables": {k: v for k, v in os.environ.items() if k != "DISTEVAL_WORLDS"},
        "path": sys.path,
        "folder": str(Path.cwd()),
        "arguments": [sys.argv[0], *sys.argv[2:]],
        "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")[:3],
        "rank": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")[4:],
        "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
        "streams": [Path(f"/proc/self/fd/{n}").readlink().name for n in range(3)],
        "open": len(list(Path("/proc/self/fd").iterdir())),
        "caught": [signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)],
        "modules": set(sys.modules),
    }


def test_a_forked_rank_is_as_one_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(None, 1, launcher="local") as world:  # there are servers from now on
        assert not started_not_forked(world)
    monkeypatch.setenv("DISTEVAL_SET_LATER", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        World(None, 1, launcher="local") as world,
        World(None, 1, launcher=LocalLauncher(forks=False)) as other,
    ):
        assert not started_not_forked(world)
        assert started_not_forked(other)
        [found], [expected] = world.run(what_a_process_is), other.run(what_a_process_is)
    assert found == expected


def draw(_: Any) -> tuple[int, float, bytes]:
    return hash("the same string"), float(np.random.random()), os.urandom(4)


def test_forked_ranks_are_as_different_as_those_that_users_start() -> None:
    with World(None, 3, launcher="local") as world:
        found = world.run(draw)
        assert found[0][0] != found[1][0]
        assert len({number for _, number, _ in found}) == 3


def test_a_module_is_imported_from_where_a_rank_that_is_started_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "of_a_user.py").write_text(f"place = {folder!r}")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        with World(None, 1, launcher=LocalLauncher(preload=["of_a_user"])) as world:
            assert not started_not_forked(world)
            assert world.run(lambda _: __import__("of_a_user").place) == [folder]


def test_a_folder_of_the_path_may_be_made_after_the_servers_have_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made_later"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    World(None, 1, launcher="local").close()
    folder.mkdir()
    (folder / "of_a_later_folder.py").write_text("")
    with World(None, 1, launcher="local") as world:
        assert not started_not_forked(world)
        assert world.run(lambda _: __import__("of_a_later_folder").__name__)


@pytest.mark.parametrize(("name", "value"), [("OMP_NUM_THREADS", "7"), ("PYTHONHASHSEED", "5")])
def test_a_variable_that_is_read_at_import_is_set_before_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    World(None, 1, launcher="local").close()
    monkeypatch.setenv(name, value)
    with World(None, 2, launcher="local") as world:
        environments = world.run(lambda _: Path("/proc/self/environ").read_bytes())
        hashes = {one for one, *_ in world.run(draw)}
    assert all(f"{name}={value}".encode() in found for found in environments)
    assert len(hashes) == (1 if name == "PYTHONHASHSEED" else 2)


@pytest.mark.skipif(
    (3, 13) <= sys.version_info < (3, 13, 3),
    reason="python 3.13.3 is needed, before which 3.13 can't import numpy in such a folder",
)
def test_ranks_are_started_in_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with World(None, 1, launcher="local") as world:
        assert started_not_forked(world)


def test_a_world_keeps_its_servers_while_others_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with World(None, 1, launcher="local") as world:
        own = forked._kept._groups[-1]._servers[0].process
        for number in range(3):
            monkeypatch.setenv("READ_AT_IMPORT", str(number))
            World(None, 1, launcher="local").close()
        assert len(forked._kept._groups) == 2
        gc.collect()
        assert world.run(lambda _: 1) == [1]
        assert is_running(own.pid)
    del world
    gc.collect()
    assert left_over([own.pid]) == []


def test_limits_that_were_set_later_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    World(None, 1, launcher="local").close()
    before = os.umask(0o027)
    try:
        with World(None, 1, launcher="local") as world:
            assert world.run(lambda _: os.umask(0)) == [0o027]
    finally:
        os.umask(before)


def test_what_the_starting_thread_alone_has_set_holds() -> None:
    found = []

    def block() -> None:
        found.append(forked._circumstances())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        found.append(forked._circumstances())

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert len(found) == 2 and found[0] != found[1]


def run_code(code: str) -> list[str]:
    environment = {**os.environ, "DISTEVAL_WORLDS": ":", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, timeout=120)
    return done.stdout.decode().split()


def test_nothing_is_forked_where_the_kernel_does_not_tell_addresses() -> None:
    code = (
        "from disteval.worlds import fork_server\n"
        "print(fork_server._is_safe())\n"
        "fork_server._addresses = lambda: [0] * 50  # as gVisor's /proc/self/stat says\n"
        "print(fork_server._is_safe())\n"
    )
    assert run_code(code) == ["True", "False"]


def test_the_watchdog_ends_after_the_servers_that_it_watches() -> None:
    code = (
        "from disteval.worlds import World, watched\n"
        "start = watched._Watchdog._start\n"
        "watched._Watchdog._start = lambda self: [print('started', flush=True), start(self)]\n"
        "World(None, 1, launcher='local').close()\n"
    )
    assert run_code(code) == ["started"]


def test_a_module_that_starts_a_thread_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import threading, time; threading.Thread(target=time.sleep, args=[99], daemon=True)"
    (tmp_path / "starts_a_thread.py").write_text(text + ".start()")
    (tmp_path / "cannot_be_imported.py").write_text("raise ImportError('broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("starts_a_thread", "cannot_be_imported"):
        with World(None, 1, launcher=LocalLauncher(preload=[name])) as world:
            assert started_not_forked(world)
            assert world.run(lambda _: list(sys.modules).count("starts_a_thread")) == [0]


def test_a_rank_has_what_its_modules_printed_when_they_were_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warns.py").write_text("print('a warning of the library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        World(None, 2, launcher=LocalLauncher(preload=["warns"])) as world,
        pytest.raises(WorldError) as caught,
    ):
        assert not started_not_forked(world)
        world.run(lambda _: os._exit(1))
    assert "of all 2 ranks:\n  a warning of the library" in str(caught.value)


def leave(_: Any, folder: str, how: str) -> None:
    """Leave what the interpreter finishes when it ends, and end."""
    global left
    left = (Path(folder) / "written").open("w")
    left.write("text")
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    file = c.fopen(os.fsencode(Path(folder) / "written_in_c"), b"w")
    c.fputs(b"text", ctypes.c_void_p(file))
    if how == "KeyboardInterrupt":
        raise KeyboardInterrupt
    if how:
        sys.exit(int(how) if how.isdecimal() else how)


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("3", "its process exited with status 3"),
        ("some text", "its process exited with status 1"),
        ("KeyboardInterrupt", "killed by SIGINT"),
    ],
)
@pytest.mark.parametrize("forks", [True, False])
def test_a_rank_ends_as_a_process_does(how: str, end: str, forks: bool, tmp_path: Path) -> None:
    with (
        World(None, 2, launcher=LocalLauncher(forks=forks)) as world,
        pytest.raises(WorldError, match=rf"rank 1 was lost \({end}\)") as caught,
    ):
        world.run(lambda _, how: leave(_, str(tmp_path), how) if how else time.sleep(99), "", how)
    assert (tmp_path / "written").read_text() == "text"
    assert how.isdecimal() or how in str(caught.value)
    # SIGINT ends a process before C has written what it keeps for a file.
    assert how == "KeyboardInterrupt" or (tmp_path / "written_in_c").read_text() == "text"


def leave_a_thread_that_writes(_: Any, folder: str) -> None:
    """Leave a thread that waits to write, and a file that is not written yet."""
    global left, pipe
    pipe = [os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
    threading.Thread(target=pipe[1].write, args=[bytes(1 << 20)], daemon=True).start()
    left = (Path(folder) / "written").open("w")
    left.write("text")
    pipe[0].read(1)  # the thread is writing


def test_a_thread_that_waits_to_write_keeps_no_rank_from_ending(tmp_path: Path) -> None:
    with World(None, 1, launcher="local") as world:
        world.run(leave_a_thread_that_writes, str(tmp_path))
    assert (tmp_path / "written").read_text() == "text"
    launcher: Any = world._launcher
    assert launcher._processes[0].poll() == 0


def leave_an_orphan(_: Any) -> int:
    """Leave a process without a parent here, in a session of its own, that ran no program."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if child := os.fork():
            os.write(writer, str(child).encode())
            os._exit(0)
        time.sleep(1000)
    os.wait()
    return int(os.read(reader, 20))


def test_what_a_rank_has_forked_ends_with_its_world_while_the_servers_stay() -> None:
    with World(None, 1, launcher="local") as world:
        [orphan] = world.run(leave_an_orphan)
        assert is_running(orphan)
        [server] = forked._kept._groups[-1]._servers[:1]
    assert left_over([orphan]) == []
    assert is_running(server.process.pid)


def pid(_: Any) -> int:
    return os.getpid()


def log_path(_: Any) -> Path:
    return Path("/proc/self/fd/1").readlink()


def test_no_forked_rank_outlives_its_servers() -> None:
    with World(None, 2, launcher="local") as world:
        [folder] = {path.parent for path in world.run(log_path)}
        pids = world.run(pid)
        os.kill(pids[1], signal.SIGSTOP)  # it notices nothing by itself
        for server in forked._kept._groups[-1]._servers:
            server.process.kill()
        assert left_over(pids) == []
        assert world._launcher.ended() == dict.fromkeys([0, 1], "killed by SIGKILL")
        world.terminate()
    assert not folder.exists()


def test_a_stopped_fork_server_goes_on_when_it_is_asked() -> None:
    with World(None, 2, launcher="local", timeout=2) as world:
        for server in forked._kept._groups[-1]._servers:
            os.kill(server.process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(WorldError, match="no progress for 2 s on all 2 ranks"):
            world.run(lambda _: time.sleep(600))
    with World(None, 2, launcher="local") as world:
        assert not started_not_forked(world)
    assert time.monotonic() - begin < 30


def test_a_lost_fork_server_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    World(None, 2, launcher="local").close()
    servers = [server.process for server in forked._kept._groups[-1]._servers]
    monkeypatch.setattr(fork_client, "_ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(fork_client.Server, "is_lost", lambda _: False)  # it is a moment later
    monkeypatch.setattr(fork_client.Server, "is_safe", lambda _: True)
    for server in servers:
        os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(WorldError, match=r"rank 0 was not started: process \d+, which forks"):
        World(None, 2, launcher="local")
    monkeypatch.undo()
    with World(None, 2, launcher="local") as world:
        assert not started_not_forked(world)
    assert wait_for(lambda: not any(is_running(server.pid) for server in servers[:1]), 20)


def test_several_worlds_may_wait_for_one_server_that_still_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "imports_for_long.py").write_text(f"open({str(tmp_path / 'go')!r}).read()")
    monkeypatch.syspath_prepend(str(tmp_path))
    servers = forked.ForkServers(["imports_for_long"], dict(os.environ))
    servers.start(1)
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(servers.are_usable())) for _ in "ab"]
    try:
        for thread in threads:
            thread.start()
        (tmp_path / "go").write_text("")  # waits until the server reads, so that it is importing
        for thread in threads:
            thread.join(30)  # less than the minute after which a server that is silent is given up
        assert found == [True, True]
    finally:
        servers.close()
