"""Ctrl-C never comes between starting something and knowing of it, and is never lost."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from disteval.worlds import World, forked
from disteval.worlds.interrupts import interrupted_later
from disteval.worlds.launchers import LocalLauncher

from suites.helpers.processes import is_running


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def as_from_a_terminal() -> Iterator[None]:
    """A test run that was itself started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_until_what_began_is_whole() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        press()
        done.append("the rest")
    assert done == ["the rest"]
    with pytest.raises(KeyboardInterrupt):
        press()


def test_ctrl_c_comes_also_where_what_began_failed() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupted_later():
        press()
        raise OSError("no such command")
    assert isinstance(caught.value.__context__, OSError)


def test_a_handler_of_the_users_is_called_then_and_stays() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("now"))
    with interrupted_later():
        press()
        assert seen == []
    assert seen == ["now"]
    press()
    assert seen == ["now", "now"]


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupted_later():
        # What is started here inherits this.
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        press()


def test_threads_have_no_handlers_to_set() -> None:
    done = []

    def work() -> None:
        with interrupted_later():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert done == [True]


@pytest.mark.parametrize(("module", "name"), [(subprocess, "Popen"), (forked, "Forked")])
def test_a_rank_that_had_just_been_started_is_ended(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = getattr(module, name)
    launcher = LocalLauncher(forks=module is forked)

    def start_and_press(*command: Any, **options: Any) -> Any:
        started.append(start(*command, **options))
        press()
        return started[-1]

    World(None, 2, launcher="local").close()  # there are a watchdog and servers then
    monkeypatch.setattr(module, name, start_and_press)
    with pytest.raises(KeyboardInterrupt):
        World(None, 2, launcher=launcher)
    assert len(started) == 1
    assert not is_running(started[0].pid)


@pytest.mark.parametrize(("module", "name"), [(Path, "mkdir"), (shutil, "rmtree")])
def test_no_moment_of_ctrl_c_leaves_a_control_directory(
    module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(module, name)

    def press_around(*args: Any, **options: Any) -> Any:
        press()
        found = function(*args, **options)
        press()
        return found

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, name, press_around)
    with pytest.raises(KeyboardInterrupt):
        World("threads", 2).close()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_at_any_line_of_an_ending_leaves_no_control_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    for number in itertools.count(1):
        world = World("threads", 1)
        reached = close_and_press(world, number)
        del world
        assert list(tmp_path.iterdir()) == [], f"pressed at line {number}"
        if not reached:
            break
    assert number > 50


def close_and_press(world: World, number: int) -> bool:
    """Close a world, and press Ctrl-C as its nth line begins; return False if it has fewer."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number
        name = frame.f_code.co_filename
        if "disteval" not in name and not name.endswith("weakref.py"):
            return None
        if event == "line":
            number -= 1
            if number == 0:
                sys.settrace(before)
                press()
        return trace

    with suppress(KeyboardInterrupt):
        sys.settrace(trace)
        try:
            world.close()
        finally:
            sys.settrace(before)
    return number <= 0
