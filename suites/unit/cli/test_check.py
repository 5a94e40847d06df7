"""``disteval check`` as somebody runs it who wrote a backend."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from harness.conformance.runner import select_rules

RULES = select_rules()

MINE = """
from backends.threads_dist import ThreadsDist

class Good(ThreadsDist):
    pass

class Swapped(ThreadsDist):
    def all_gather_object(self, obj):
        gathered = super().all_gather_object(obj)
        return gathered[::-1]

class Stuck(ThreadsDist):
    def all_gather_object(self, obj):
        import threading
        threading.Event().wait(60)

    broadcast_object = all_gather_object

NotABackend = 3
"""


@pytest.fixture
def check(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(MINE)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness.cli", "check", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_conformant_backend(check: Any, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    done = check("mine:Good", "--world-size=1,2", "--examples=10", f"--json={report}")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "mine:Good is conformant" in done.stdout
    found = json.loads(report.read_text())
    assert found["target"] == "mine:Good"
    assert found["verdict"] == "conformant"
    required = sum(rule.level == "required" for rule in RULES)
    assert found["required_run"] == 2 * required
    assert {(r["id"], r["world_size"]) for r in found["rules"]} == {
        (rule.number, size) for rule in RULES for size in (1, 2)
    }
    for result in found["rules"]:
        assert result["outcome"] == "passed"
        assert result["examples"] > 0
        assert set(result) == {
            "id", "name", "level", "world_size", "outcome", "examples", "seconds", "message",
            "counterexample",
        }  # fmt: skip


def test_a_broken_backend_gets_the_smallest_example_and_a_line_that_replays_it(
    check: Any,
) -> None:
    done = check("mine:Swapped", "--world-size=3", "--rules=2.1")
    assert done.returncode == 1
    assert "mine:Swapped is broken" in done.stdout
    assert "On every rank, entry r of an all-gather is rank r's object" in done.stdout
    # Shrunk: two ranks send None, and one sends the simplest thing that is not.
    found = re.search(r"example: ranks send \[(.{1,30})\]\n", done.stdout)
    assert found is not None, done.stdout
    assert found[1].count("None") == 2
    assert f"instead of [{found[1]}]" in done.stdout
    replay = "disteval check mine:Swapped --rules 2.1 --world-size 3 --seed 0 --examples 100"
    assert replay in done.stdout
    assert found[0] in check(*replay.split()[2:]).stdout


def test_a_backend_that_hangs_is_broken_soon_and_the_rest_is_not_run(check: Any) -> None:
    done = check("mine:Stuck", "--world-size=2,3", "--timeout=1", "--examples=5")
    assert done.returncode == 1
    assert "no progress for 1 s on ranks 0, 1" in done.stdout
    assert "waits in all_gather_object #1" in done.stdout
    assert "not run: 2 rules in a row ended in a lost world" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("thread",), "no backend 'thread'. Did you mean 'threads'?"),
        (("none:Backend",), "none:Backend can't be imported: ModuleNotFoundError"),
        (("mine:Missing",), "mine:Missing can't be imported: AttributeError"),
        (("mine:NotABackend",), "is no subclass of harness.BaseDistBackend"),
        (("threads", "--rules=77.*"), "no rule matches '77.*'; the known ones are: 1.1, 1.2"),
        (("threads", "--world-size=0"), "'0' is no list of world sizes"),
        (("threads", "--launcher=ssh"), "no launcher 'ssh'"),
        ((), "name a backend to check"),
    ],
)
def test_what_cannot_be_judged_exits_with_2(
    check: Any, arguments: tuple[str, ...], message: str
) -> None:
    done = check(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_rules_are_listed(check: Any) -> None:
    done = check("--list")
    assert done.returncode == 0
    for rule in RULES:
        assert rule.number in done.stdout
