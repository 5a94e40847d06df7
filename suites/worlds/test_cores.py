"""A machine is asked how many ranks it has room for, before hundreds of processes are started."""

import subprocess
from typing import Any

import pytest
from disteval import UsageError
from disteval.world import cores

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
