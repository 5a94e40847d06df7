"""Every command line of every page is valid, and those that this machine can run do run."""

import contextlib
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from disteval.registry import list_all_backends

from suites.docs.pages import PAGES, ROOT, blocks_of, write_files
from suites.docs.shell import LAUNCHERS, Command, check, commands_of, mentions_of
from suites.helpers.command import disteval, parse
from suites.helpers.needs import OPTIONAL, needs
from suites.helpers.pictures import RIGHT
from suites.helpers.processes import horovodrun, mpirun, run_plainly, torchrun

SECONDS = 120.0
_THEIR_OWN = ("--data", "--download", "--weights", "--device", "--json", "--html")
"""Options that name files or devices of a user, or write files that the next line reads."""


@cache
def pytest_options() -> set[str]:
    """Return the options that pytest accepts with the plugin."""
    command = [sys.executable, "-m", "pytest", "-p", "disteval.conformance.plugin", "--help"]
    shown = run_plainly(command, Path(__file__).parent, SECONDS).stdout
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown))


def needed_by(command: Command) -> set[str] | None:
    """Return the libraries and backends that a command needs, or None if it is not run here.

    A complete check of a backend is not run, because `suites/properties` does that for all
    backends, and neither is an evaluation with torch, which `suites/cli/test_eval.py`,
    `suites/worlds/test_hosts_launched.py` and `suites/worlds/test_ray.py` start. Commands that need
    files of a user, a network or minutes are not run either.
    """
    name, *words = [part for word in command.words for part in word.split("=", 1)]
    if not command.is_whole or (command.launcher and command.launcher[0] not in LAUNCHERS):
        return None
    found = {LAUNCHERS[command.launcher[0]]} if command.launcher else set()
    shown = {block.file for block in blocks_of(command.page)} - {""}
    if name in ("python", "pytest"):
        return found if shown & set(words) or _is_of_suites(command) else None
    given = dict(pairwise([*words, ""]))
    if name != "disteval" or not words or given.keys() & set(_THEIR_OWN):
        return None
    if words[0] == "eval" and ":" in [*words, ""][1]:
        is_shown = f"{words[1].partition(':')[0]}.py" in shown
        return found | {given.get("--backend", "torch_cpu")} if is_shown else None
    if words[0] == "eval":
        computes = given.get("--framework")
        return found | {computes, given.get("--backend", "torch_cpu")} if computes else None
    if words[0] in ("backends", "new") or {"-h", "--help", "--list"} & {*words}:
        return found
    if words[0] == "check":
        target = words[1]
        if f"{target.partition(':')[0].replace('.', '/')}.py" in shown:
            return found
        # `suites/worlds/test_ray.py` checks a backend on Ray.
        is_part = "--rules" in given and "--launcher" not in given
        return found | {target} if is_part and target in list_all_backends() else None
    return found if words[:2] == ["doctor", "--no-start"] else None


def _is_of_suites(command: Command) -> bool:
    """Return whether a command runs tests of this repository."""
    name, *words = command.words
    return name == "pytest" and any(word.startswith("suites/") for word in words)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_shows_what_does_not_exist(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    for command in commands_of(page):
        options = pytest_options() if command.words[0] == "pytest" else set()
        check(command, tmp_path, options)
    for mention in mentions_of(page):
        with contextlib.suppress(click.BadOptionUsage):  # prose may leave out an option's value
            parse(*mention.words[1:])


def runnable() -> list[Command]:
    """Return the commands to run; a command that several pages show is run once.

    Without ``--world-size``, three ranks evaluate.
    """
    every = [command for page in PAGES for command in commands_of(page)]
    once = {
        (command.launcher, " ".join(command.words).replace(" --world-size 3", "")): command
        for command in reversed(every)
    }
    return [command for command in reversed(once.values()) if needed_by(command) is not None]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=needs(*(needed_by(one) or set()) & OPTIONAL), id=str(one))
        for one in runnable()
    ],
)
def test_a_command_of_a_page_runs(
    command: Command, tmp_path: Path, small_cifar10: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(command.page, tmp_path)
    # A page evaluates 10,000 pictures.
    monkeypatch.setenv("CIFAR10_ROOT", str(small_cifar10))
    folder = ROOT if _is_of_suites(command) else tmp_path
    words = _as_run_here(command)
    if words[1:3] == ["-m", "disteval.cli"] and "--framework" not in words:
        done = disteval(folder, *words[3:])  # imports no library here
    else:
        done = run_plainly(words, folder, SECONDS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if command.words[1] == "eval" and "--framework" in command.words:
        assert re.search(rf"correct_top1 +│ {RIGHT['top1']} ", done.stdout), done.stdout
    if command.words[0] == "pytest":
        assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout
    if folder == ROOT and command.launcher:
        backend = LAUNCHERS[command.launcher[0]]
        assert re.search(rf"\b[1-9]\d* tests .* {backend}.* {command.launcher[0]}", done.stdout)
        assert re.search(rf"{backend} .* 1\.1, 2\.1 ", done.stdout), done.stdout


def _as_run_here(command: Command) -> list[str]:
    """Return the command with programs of this Python, two ranks, and few examples in a check."""
    name, *words = command.words
    if name == "disteval":
        words = ["-m", "disteval.cli", *words]
        if "--framework" in words:  # whose batches are filled up, so that a third is one
            words += ["--batch-size=41"]
        if "check" in words and {"--list", "--help"}.isdisjoint(words):
            words += ["--examples=5", *([] if "--world-size" in words else ["--world-size=2"])]
    elif name == "pytest":
        if "suites/properties" in words:  # the sessions run all of it
            words += ["-k", "two_values or 1.1 or 2.1", "--examples=5"]
            if command.launcher:
                words += [f"--backend={LAUNCHERS[command.launcher[0]]}"]
        words = ["-m", "pytest", *words]
    if not command.launcher:
        return [sys.executable, *words]
    start = {"mpirun": mpirun, "torchrun": torchrun, "horovodrun": horovodrun}[command.launcher[0]]
    return [*start(2), sys.executable, *words]
