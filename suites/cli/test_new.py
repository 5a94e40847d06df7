"""``disteval new`` writes a task that can be evaluated as it is, and spoils no file."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from suites.helpers.command import invoke, parse
from suites.helpers.needs import each

FRAMEWORKS = ("torch", "jax", "tensorflow", "sklearn")

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield invoke
    sys.modules.pop("my_own", None)


@pytest.mark.parametrize("name", each(*FRAMEWORKS))
def test_a_new_task_is_evaluated_alike_at_every_world_size(run: Run, name: str) -> None:
    done = run("new", "my_own", f"--framework={name}")
    assert done.exit_code == 0, done.output
    assert len(Path("my_own.py").read_text().splitlines()) < 40
    found: list[Any] = []
    for size in (1, 3):
        done = run(
            "eval", "my_own:task", "--backend=threads", f"--world-size={size}", "--json=r.json"
        )
        assert done.exit_code == 0, done.output
        report = json.loads(Path("r.json").read_text())
        assert (report["size"], report["batch_size"]) == (1000, 64)
        found.append(report["metrics"])
    assert found[0] == found[1]
    assert found[0]["accuracy"]["top1"] > 0.9


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_command_that_is_printed_is_one_of_this_file(run: Run, name: str) -> None:
    done = run("new", "my_own.py", f"--framework={name}")
    assert done.exit_code == 0
    [command] = [line for line in done.output.splitlines() if line.startswith("    disteval ")]
    assert command.split()[1:3] == ["eval", "my_own:task"]
    parse(*command.split()[1:])
    assert command.strip() in Path("my_own.py").read_text()
    assert "my_task" not in Path("my_own.py").read_text()
