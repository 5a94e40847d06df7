"""A machine is asked how many ranks it has room for, before hundreds of processes are started."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import pytest
from disteval import UsageError
from disteval.conformance.schedule import Job, run_side_by_side
from disteval.worlds import cores

from suites.helpers.command import invoke
from suites.helpers.faults import forget_fork_servers
from suites.helpers.needs import needs

BACKEND = "suites.mutants.sockets:Sockets"
COMMANDS = [
    ["eval", "--backend", BACKEND],
    ["check", BACKEND],
    pytest.param(["fit"], marks=needs("torch")),
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Make up this machine's figures; each is plenty until a test changes it."""
    found = {"available_cores": 1000, "_free_mib": 1 << 30, "_most_processes": 1 << 30}
    for name in found:
        monkeypatch.setattr(cores, name, lambda name=name: found[name])
    return found


@pytest.mark.parametrize(
    ("name", "figure", "most", "each"),
    [
        ("available_cores", 2, 32, 16), ("_free_mib", 1500, 10, 150), ("_most_processes", 80, 10, 8)
    ],
)  # fmt: skip
def test_what_is_scarce_is_named_with_its_figure(
    machine: dict[str, int], name: str, figure: int, most: int, each: int
) -> None:
    machine[name] = figure
    cores.check_room(most)
    numbers = rf"^{most + 1}\b.*\b{figure}\b.*\b{each}\b.*\b{most}\b.*--force"
    with pytest.raises(UsageError, match=numbers):
        cores.check_room(most + 1)


def test_one_rank_may_always_start(machine: dict[str, int]) -> None:
    machine["_free_mib"] = 0
    cores.check_room(1)


@pytest.mark.parametrize(("size", "together"), [(16, True), (17, False)])
def test_worlds_run_side_by_side_while_there_is_room_for_the_ranks_of_all(
    machine: dict[str, int], size: int, together: bool
) -> None:
    machine["available_cores"] = 2
    running: list[Job] = []
    several = threading.Event()

    def run(job: Job) -> None:
        running.append(job)
        if len(running) > 1:
            several.set()
        several.wait(60.0 if together else 0.2)
        running.remove(job)

    run_side_by_side([Job(size, []), Job(size, [])], run, lambda: None)
    assert several.is_set() == together


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_starts_no_more_ranks_than_there_is_room_for_unless_forced(
    command: list[str], machine: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    started = []

    def refuse(*args: Any, **_: Any) -> None:
        started.append(args)
        raise OSError("nothing is started here")

    machine["available_cores"] = 2
    monkeypatch.setattr(subprocess, "Popen", refuse)
    forget_fork_servers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    asked = [*command, "--world-size", "1000"]
    done = invoke(*asked)
    assert done.exit_code == 2
    assert "1000" in done.output and "2 core" in done.output
    assert started == []
    invoke(*asked, "--force")
    assert started


def test_threads_need_no_room(machine: dict[str, int]) -> None:
    machine["available_cores"] = 1
    done = invoke("check", "threads", "--world-size", "40", "--rules", "1.1")
    assert done.exit_code == 0
