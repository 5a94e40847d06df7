"""Elastic evaluations whose ranks and leaders are lost, and what has to come of them.

Each run draws, from its seed, a world size, ranks that are lost, how and when. The result has to be
that of one rank to the last bit, and every sample has to be counted once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from disteval import get_dist_backend, load_predictions

from suites.faults import lease_task
from suites.helpers.processes import left_over, processes_below, ranks_below, wait_for

TASK = "suites.faults.lease_task:task"
HOWS = ("SIGKILL", "SIGSTOP", "exit", "exception")

_TIMEOUT = 4
"""Seconds after which a rank that is stopped loses its lease."""

_LONGEST = 1.2
"""Seconds after the last rank's start within which ranks are lost; all batches take about that."""

_BATCH_SECONDS = 0.01
_SECONDS = 120.0


def right() -> dict[str, Any]:
    """Return the results of one rank."""
    backend = get_dist_backend("non_dist")
    found = lease_task.task(backend).evaluate(backend).metrics
    assert found["counts"] == [1] * lease_task.SAMPLES
    plain: dict[str, Any] = json.loads(json.dumps(found, default=lambda array: array.tolist()))
    return plain


def command(folder: Path, world_size: int, *options: str, task: str = TASK) -> list[str]:
    """Return the words of an evaluation that writes report.json and predictions into a folder."""
    return [
        sys.executable, "-m", "disteval.cli", "eval", task, "--world-size", str(world_size),
        "--elastic", "--force", "--quiet", "--json", str(folder / "report.json"),
        "--predictions", str(folder / "predictions"), *options,
    ]  # fmt: skip


def start(words: list[str], faults: dict[int, Any], seconds: float) -> subprocess.Popen[str]:
    """Start a command whose batches take so many seconds on average, in a session of its own."""
    environment = os.environ | {
        lease_task.FAULTS: json.dumps(faults),
        lease_task.SECONDS: str(seconds),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def lose_ranks(seed: int, folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Evaluate with ranks that are lost at random moments, all but one at most.

    Returns:
        What the report says of leases.
    """
    draw = random.Random(seed)
    size = draw.randint(2, 6)
    victims = draw.sample(range(size), draw.randint(1, size - 1))
    drawn = {rank: draw.choice(HOWS) for rank in victims}
    inside = {r: (how, draw.randint(0, 30)) for r, how in drawn.items() if how.startswith("ex")}
    signals = [(draw.uniform(0, _LONGEST), r, how) for r, how in drawn.items() if r not in inside]
    leader = start(command(folder, size, f"--timeout={_TIMEOUT}"), inside, _BATCH_SECONDS)
    try:
        wait_for(lambda: len(ranks_below(leader.pid)) == size or leader.poll() is not None, 30)
        ranks, below, begin = ranks_below(leader.pid), processes_below(leader.pid), time.monotonic()
        for at, rank, how in sorted(signals):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            with suppress(KeyError, ProcessLookupError):  # it has ended
                os.kill(ranks[rank], getattr(signal, how))
        _, told = leader.communicate(timeout=_SECONDS)
    finally:
        leader.kill()
    assert leader.returncode == 0, f"seed {seed}, {size} ranks, {drawn}: {told}"
    report = json.loads((folder / "report.json").read_text())
    assert judge(report, expected) == "", f"seed {seed}, {size} ranks, {drawn}"
    judge_predictions(folder / "predictions")
    assert left_over(below) == []
    found: dict[str, Any] = report["leases"]
    return found


def lose_leader(folder: Path, expected: dict[str, Any], life: float) -> None:
    """Kill a leader so many seconds after it has begun, and let another one go on."""
    words = command(folder, 2, "--ledger", str(folder / "ledger"))
    leader = start(words, {}, 2 * _BATCH_SECONDS)
    wait_for((folder / "ledger" / "leader.json").exists, 30)
    time.sleep(life)
    below = processes_below(leader.pid)
    leader.kill()
    leader.communicate()
    assert leader.returncode == -signal.SIGKILL, "it had ended before it was killed"
    assert left_over(below) == []
    next_one = start(words, {}, 2 * _BATCH_SECONDS)
    try:
        _, told = next_one.communicate(timeout=_SECONDS)
    finally:
        next_one.kill()
    assert next_one.returncode == 0, told
    assert judge(json.loads((folder / "report.json").read_text()), expected) == ""
    judge_predictions(folder / "predictions")


def judge(report: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what is wrong with a report; nothing where it is right."""
    for name, value in expected.items():
        if report["metrics"][name] != value:
            return f"the metric {name} is {report['metrics'][name]!r:.200}, not {value!r:.200}"
    size, evaluated = report["size"], report["evaluated"]
    if not size == evaluated == lease_task.SAMPLES or report["coverage"] != "exact":
        return f"{evaluated} of {size} samples, coverage {report['coverage']}"
    return ""


def judge_predictions(folder: Path) -> None:
    """Check that each prediction is there once, to the last bit, and no other file."""
    found = load_predictions(folder)
    assert [row.tolist() for row in found] == lease_task.samples()[0].tolist()
    named = {part.name + suffix for part in found.parts for suffix in part.files}
    assert {path.name for path in folder.iterdir()} == named | {".manifest.json"}
