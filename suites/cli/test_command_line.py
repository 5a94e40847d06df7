"""All sub-commands of ``disteval`` have common options, errors and exit statuses."""

import errno
import os
import re
import shlex
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("hypothesis", reason="hypothesis is not installed")


from disteval.cli import main

from suites.helpers import command
from suites.helpers.processes import (
    is_running,
    ranks_below,
    run_on_a_terminal,
    run_plainly,
    start_as_from_a_terminal,
    wait_for,
)

DISTEVAL = [sys.executable, "-m", "disteval.cli"]
ROOT = Path(__file__).parents[2]

MINE = """
import sys
from disteval_backends.threads_dist import ThreadsDist
from suites.mutants.sockets import Sockets

class Loud(Sockets):
    def all_gather_object(self, obj):
        print(f"gathers as {self.rank}")
        print(f"warns as {self.rank}", file=sys.stderr)
        return super().all_gather_object(obj)

class Stuck(Sockets):
    def all_gather_object(self, obj):
        import threading
        threading.Event().wait(60)

class Attack:
    def __repr__(self):
        return "\\x1b[2J\\u202e\\x9b"

class Attacking(ThreadsDist):
    def all_gather_object(self, obj):
        return [Attack() for _ in super().all_gather_object(obj)]

    def broadcast_object(self, obj, src=0):
        raise OSError(repr(Attack()))
"""


@click.group(cls=command.Commands)
def falling() -> None:
    """Has commands that raise what nobody expects."""


@falling.command()
def fall() -> None:
    raise ZeroDivisionError("by nought")


@falling.command()
def read() -> None:
    raise PermissionError(13, "Permission denied", "trace/closed.json")


@falling.command()
def write() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "out/part.json")


BROKEN = "suites.mutants.broken.gathered:ReversedOrder"
ONE_RULE = ["--world-size=2", "--rules=2.1", "--examples=3"]


@pytest.fixture
def disteval(tmp_path: Path) -> Any:
    """Return a function that runs the command in this process, where it finds `MINE`."""
    (tmp_path / "mine.py").write_text(MINE)
    return partial(command.disteval, tmp_path)


@pytest.mark.parametrize("name", ["", *command.COMMANDS])
def test_help_fits_a_screen_below_headings_and_has_an_example_on_a_line_of_its_own(
    name: str,
) -> None:
    done = CliRunner().invoke(main, [*name.split(), "-h"], prog_name="disteval", terminal_width=100)
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 50
    headings = {"eval": ["Options:", "The ranks:", "The results:", "ResNet-18 on CIFAR-10:"]}
    shown = re.findall(r"^\w.*:$", done.output, re.MULTILINE)
    assert shown == headings.get(name, shown)
    assert len({*shown}) == len(shown) > 0
    before = r"^  (?:[a-z]+run .*|source <\(|[A-Z_]+=\S+ )?disteval "
    examples = re.findall(rf"{before}({name}[^\n)>#]*)", done.output, re.MULTILINE)
    assert examples
    for example in examples if name else ():
        command.parse(*shlex.split(example))
    assert "\\b" not in done.output
    assert "--verbose" in done.output


def test_the_exit_statuses_are_part_of_the_help(disteval: Any) -> None:
    shown = re.findall(r"^    (\d+)  ", disteval("--help").stdout, re.MULTILINE)
    assert shown == ["0", "1", "2", "130"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("target", "status"), [("threads", 0), (BROKEN, 1), ("none", 2)])
def test_quiet_leaves_errors_and_the_exit_status(
    disteval: Any, before: bool, target: str, status: int
) -> None:
    arguments = ["check", target, *ONE_RULE]
    done = disteval("--quiet", *arguments) if before else disteval(*arguments, "-q")
    assert done.returncode == status
    assert done.stdout == ""
    assert bool(done.stderr) == (status == 2)


def test_verbose_alone_shows_what_each_rank_prints(disteval: Any) -> None:
    done = disteval("check", "mine:Loud", *ONE_RULE)
    assert done.returncode == 0
    assert not any(f"{what} as" in done.stdout + done.stderr for what in ("gathers", "warns"))
    done = disteval("--verbose", "check", "mine:Loud", *ONE_RULE)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    for rank in (0, 1):
        assert f"[rank {rank}] gathers as {rank}" in lines
        assert f"[rank {rank}] warns as {rank}" in lines
    assert "[rank" not in done.stdout


def test_an_error_is_one_line_and_its_traceback_comes_with_verbose(disteval: Any) -> None:
    done = disteval("check", "thread")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'thread'" in done.stderr
    verbose = disteval("check", "thread", "--verbose")
    assert verbose.returncode == 2
    assert verbose.stderr.startswith("Traceback")
    assert verbose.stderr.endswith(done.stderr)


def test_no_text_of_a_backend_commands_the_terminal(disteval: Any) -> None:
    done = disteval("check", "mine:Attacking", "--rules=2.1,3.1", "--world-size=2", "--examples=3")
    assert done.returncode == 1
    for stream in (done.stdout, done.stderr):
        assert all(character.isprintable() or character == "\n" for character in stream)
        assert stream.count(r"\x1b[2J\u202e\x9b") >= 2  # of both rules
    missing = disteval("check", "threads", "--json=\x1b[2J/r.json")
    assert missing.returncode == 2
    assert r"\x1b[2J" in missing.stderr


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("fall", 1, ("ZeroDivisionError", "by nought", "--verbose")),
        ("read", 2, ("closed.json",)),
        ("write", 1, ("out/part.json", "space")),
    ],
)
def test_an_error_that_nobody_expected_is_one_line(
    name: str, status: int, words: tuple[str, ...]
) -> None:
    done = command.invoke(name, group=falling)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    for word in (f"disteval {name}", *words):
        assert word in done.stderr
    verbose = command.invoke(name, "-v", group=falling)
    assert (verbose.exit_code, verbose.stderr[:9]) == (status, "Traceback")


def test_ctrl_c_however_often_ends_with_130_and_no_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    started = start_as_from_a_terminal(
        [*DISTEVAL, "check", "mine:Stuck", "--timeout=60", *ONE_RULE], cwd=tmp_path
    )
    ranks = wait_for(lambda: found if len(found := ranks_below(started.pid)) == 2 else {})
    assert ranks, "two ranks did not appear"
    started.send_signal(signal.SIGINT)
    assert started.stderr is not None
    stderr = started.stderr.readline()
    while started.poll() is None:
        started.send_signal(signal.SIGINT)
        time.sleep(0.01)
    stderr += started.communicate(timeout=60)[1]
    assert started.returncode == 130, stderr
    assert stderr.count("\n") == 1
    assert not any(is_running(pid) for pid in ranks.values())


def test_ctrl_c_in_an_exit_handler_of_a_library_prints_no_traceback() -> None:
    program = (
        "import atexit, sys, threading; from disteval.cli import main; "
        "atexit.register(lambda: (print('at exit', flush=True), threading.Event().wait(60))); "
        "main(['--version'])"
    )
    started = start_as_from_a_terminal([sys.executable, "-c", program])
    assert started.stdout is not None
    assert any(line == "at exit\n" for line in started.stdout)
    started.send_signal(signal.SIGINT)
    assert (started.communicate(timeout=60)[1], started.returncode) == ("", -signal.SIGINT)


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_no_color_leaves_out_colours(variables: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    shown = run_on_a_terminal(
        [*DISTEVAL, "check", "threads", *ONE_RULE],
        env=kept | {"TERM": "xterm-256color"} | variables,
    )
    assert "threads" in re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert bool(re.search(r"\x1b\[[\d;]*3\d[\d;]*m", shown)) == (variables == {})


def test_bash_completes(tmp_path: Path) -> None:
    offered = {
        "disteval che": "check",
        "disteval check --world": "--world-size",
        "disteval audit --write kera": "keras",
    }
    (tmp_path / "disteval").write_text(f'#!/bin/sh\nexec {sys.executable} -m disteval.cli "$@"\n')
    (tmp_path / "disteval").chmod(0o755)
    script = f'PATH="{tmp_path}:$PATH"; eval "$(_DISTEVAL_COMPLETE=bash_source disteval)"\n'
    for typed in offered:
        script += (
            f"COMPREPLY=(); COMP_WORDS=({typed}); COMP_CWORD={typed.count(' ')}; "
            'eval "$(complete -p disteval | sed "s/.*-F \\([^ ]*\\).*/\\1/") disteval"; '
            'echo "${COMPREPLY[@]}"\n'
        )
    done = run_plainly([shutil.which("bash") or "bash", "-c", script], tmp_path, 120)
    assert done.stdout.splitlines() == list(offered.values()), done.stderr
