"""Nobody but its user can take the place of a control directory, and none outlives its leader."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from disteval import WorldError
from disteval.worlds import control_directory
from disteval.worlds.control_directory import create, folder, open_private, sweep

from suites.helpers.processes import wait_for

SECONDS = 60
STRANGER = 12345
MAKE = "from disteval.worlds.control_directory import create; made = create(); print(made.path); "


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))


def link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def give_away(path: Path) -> None:
    path.mkdir(mode=0o700)
    try:
        os.chown(path, STRANGER, STRANGER)
    except PermissionError:
        pytest.skip("only root can make a directory of another user")


def let_others_in(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def write_file(path: Path) -> None:
    path.touch(0o600)


PLANTED: dict[Callable[[Path], None], str] = {
    link: "is a symbolic link",
    give_away: f"belongs to user {STRANGER} with mode 0700",
    let_others_in: f"belongs to user {os.geteuid()} with mode 0755",
    write_file: r"can't be opened \(Not a directory\)",
}


@pytest.mark.parametrize("place", ["folder", "directory"])
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_not_private_is_refused_with_what_to_do(
    plant: Callable[[Path], None], place: str
) -> None:
    path = folder() if place == "folder" else folder() / "job"
    if place == "directory":
        folder().mkdir(mode=0o700)
    plant(path)
    wanted = f"expected a directory of user {os.geteuid()} with mode 0700"
    sentence = f"{re.escape(str(path))} {PLANTED[plant]}; {wanted}.*set DISTEVAL_CONTROL_DIR"
    with pytest.raises(WorldError, match=sentence):
        open_private(path)
    with pytest.raises(WorldError, match=sentence):
        create("job")


def test_a_folder_in_which_others_can_rename_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(WorldError, match="lies in a folder where any user can exchange it"):
        create()
    tmp_path.chmod(0o1777)
    create().remove()


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path / "missing"))
    with pytest.raises(WorldError, match=r"missing/disteval-\d+ can't be made \(No such file"):
        create()
    assert sweep() == []


def test_a_folder_without_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(
        WorldError, match=r"can't be locked \(No locks available\).*set DISTEVAL_CO"
    ):
        create()


def test_a_name_can_be_used_by_one_leader_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_directory, "_ATTEMPTS", 2)
    first = create("job")
    with pytest.raises(WorldError, match="another world of this job is using"):
        create("job")
    first.remove()
    first.remove()
    second = create("job")
    first.remove()  # it is not the first one's any more
    assert second.path == first.path
    assert second.path.is_dir()
    second.remove()


def test_directories_of_dead_leaders_alone_are_swept(tmp_path: Path) -> None:
    ours = create()
    # The second leader ends by a signal, and a child of it lives on.
    codes = ["os._exit(1)", "subprocess.Popen(['sleep', '0.01']); os.kill(os.getpid(), 9)"]
    dead = [
        subprocess.run(
            [sys.executable, "-c", f"import os, subprocess; {MAKE}sys.stdout.flush(); {code}"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
            text=True,
        ).stdout.strip()
        for code in (f"import sys; {code}" for code in codes)
    ]
    live = subprocess.Popen(
        [sys.executable, "-c", f"{MAKE}import sys; sys.stdout.flush(); sys.stdin.read()"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert live.stdout is not None
        theirs = Path(live.stdout.readline().strip())
        (folder() / "a file").touch()
        (folder() / "a link").symlink_to(tmp_path)
        assert sorted(map(str, sweep())) == sorted(dead)
        assert ours.path.is_dir()
        assert theirs.is_dir()
    finally:
        live.communicate(timeout=SECONDS)
    assert sweep() == [theirs]


def test_a_fork_of_a_dead_leader_keeps_no_directory_of_it() -> None:
    fork = "import sys, time; sys.stdout.flush(); os.fork() or time.sleep(1000); os._exit(1)"
    with subprocess.Popen(
        [sys.executable, "-c", f"import os; {MAKE}{fork}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        path = Path(leader.stdout.readline().strip())
        leader.wait(SECONDS)
        swept = wait_for(sweep, SECONDS)
        os.killpg(leader.pid, signal.SIGKILL)
    assert swept == [path]


def test_a_directory_of_a_dead_leader_is_taken_over_empty() -> None:
    stale = folder() / "job"
    (stale / "rendezvous-1").mkdir(parents=True)
    folder().chmod(0o700)
    stale.chmod(0o700)
    (stale / "address").write_text("nobody listens there any more")
    taken = create("job")
    assert list(taken.path.iterdir()) == []
    taken.remove()


def test_nothing_is_swept_while_it_is_made(tmp_path: Path) -> None:
    """Leaders that start and end all the time, each after a sweep, keep their directories."""
    kept: list[bool] = []

    def live() -> None:
        for _ in range(50):
            sweep()
            made = create()
            (made.path / "address").touch()
            kept.append((made.path / "address").exists())
            made.remove()

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert kept == [True] * 200
    assert list(tmp_path.iterdir()) == []
