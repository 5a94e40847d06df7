"""``python -m suites.faults.leases``: kill ranks and leaders of elastic evaluations, many times.

Each run draws, from its seed, a world size, ranks that are lost, how and when. The result has to be
that of one rank to the last bit, and every sample has to be counted once.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from disteval.cli.elastic_options import Elastic
from disteval.cli.eval_elastic import lend
from disteval.cli.eval_in_step import Starter
from disteval.cli.job import EvalJob
from disteval.cli.named_task import NamedTask
from disteval.data.predictions import Predictions, load_predictions
from disteval.default_backend import get_dist_backend
from disteval.report.values import plain
from disteval.worlds import ElasticWorld, LocalLauncher

from suites.faults import lease_task
from suites.helpers.processes import left_over, processes_below, wait_for

TASK = "suites.faults.lease_task:task"
HOWS = ("SIGKILL", "SIGSTOP", "exit", "exception")
TIMEOUT = 2.0
"""Seconds after which a rank that is stopped loses its lease."""

_BATCH_SECONDS = 0.01
# Seconds after the start, when the last rank is lost; an evaluation takes about that.
_LONGEST = 1.2
_LOOK_SECONDS = 0.01
_LEADER_LIVES = (0.0, 1.5)
_START_SECONDS = 3.0
_MOST_LEADERS = 5
_LAST_LEADER_SECONDS = 120.0


@dataclass
class Found:
    """What came of one run."""

    seed: int
    world_size: int
    drawn: dict[int, str]
    lost: int
    wrong: str
    seconds: float


@dataclass(frozen=True)
class Forked(Starter):
    """Starts ranks that are forked with all that they import, and remembers their worlds."""

    worlds: list[ElasticWorld]

    def elastic_world(self, size: int) -> ElasticWorld:
        """See `Starter.elastic_world`."""
        launcher = LocalLauncher(preload=["disteval.evaluation.leased", "suites.faults.lease_task"])
        self.worlds.append(ElasticWorld(size, launcher, timeout=self.timeout))
        return self.worlds[-1]


def right() -> dict[str, Any]:
    """Return the results of one rank."""
    backend = get_dist_backend("non_dist")
    result = lease_task.task(backend).evaluate(backend)
    found = {name: plain(value) for name, value in result.metrics.items()}
    assert found["counts"] == [1] * lease_task.SAMPLES
    return found


def lose_ranks(seed: int, expected: dict[str, Any], predictions: Path) -> Found:
    """Evaluate with ranks that are lost at random moments, all but one at most.

    Args:
        seed: Decides how many ranks there are, and which are lost when and how.
        expected: The right results.
        predictions: A new folder for predictions.
    """
    draw = random.Random(seed)
    size = draw.randint(2, 6)
    victims = draw.sample(range(size), draw.randint(1, size - 1))
    drawn = {rank: draw.choice(HOWS) for rank in victims}
    inside = {r: (how, draw.randint(0, 30)) for r, how in drawn.items() if how.startswith("ex")}
    signals = [(draw.uniform(0, _LONGEST), r, how) for r, how in drawn.items() if r not in inside]
    os.environ[lease_task.FAULTS] = json.dumps(inside)
    os.environ[lease_task.SECONDS] = str(_BATCH_SECONDS)
    start = Forked(size, None, None, TIMEOUT, 1, False, None, [])
    ended = threading.Event()
    killer = threading.Thread(target=_send_signals, args=(start.worlds, sorted(signals), ended))
    job = EvalJob(NamedTask(TASK), "none", None, None, Predictions(predictions))
    begin = time.monotonic()
    killer.start()
    try:
        with redirect_stderr(io.StringIO()):
            report = lend(start, job, Elastic(None, join=False, ranks_per_lease=1))
        lost = len(report["leases"]["lost"])
        wrong = judge(report, expected) or judge_predictions(predictions)
        failed = len(report["leases"]["failed"])
    except Exception as error:
        lost, failed, wrong = 0, 0, f"{type(error).__name__}: {error}"
    finally:
        ended.set()
        killer.join()
    pids = [one.pid for world in start.worlds for one in world._launcher._processes]  # type: ignore[attr-defined]
    if not wrong and (left := left_over(pids)):
        wrong = f"processes {left} are left"
    return Found(seed, size, drawn, lost + failed, wrong, time.monotonic() - begin)


def judge(report: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what is wrong with a report; nothing where it is right."""
    for name, value in expected.items():
        if report["metrics"][name] != value:
            return f"the metric {name} is {report['metrics'][name]!r:.200}, not {value!r:.200}"
    size, evaluated = report["size"], report["evaluated"]
    if not size == evaluated == lease_task.SAMPLES or report["coverage"] != "exact":
        return f"{evaluated} of {size} samples, coverage {report['coverage']}"
    return ""


def judge_predictions(folder: Path) -> str:
    """Return what is wrong with predictions; nothing where each is there once, to the last bit."""
    found = load_predictions(folder)
    if [row.tolist() for row in found] != lease_task.samples()[0].tolist():
        return f"the predictions in {folder} are wrong"
    named = {part.name + suffix for part in found.parts for suffix in part.files}
    others = {path.name for path in folder.iterdir()} - named - {".manifest.json"}
    return f"files {others} are left in {folder}" if others else ""


def _send_signals(
    worlds: list[ElasticWorld], signals: list[tuple[float, int, str]], ended: threading.Event
) -> None:
    while not worlds and not ended.wait(_LOOK_SECONDS):
        pass
    begin = time.monotonic()
    for at, rank, how in signals:
        if ended.wait(max(0.0, begin + at - time.monotonic())):
            return
        with suppress(IndexError, ProcessLookupError):  # it has not started, or has ended
            os.kill(worlds[0]._launcher._processes[rank].pid, getattr(signal, how))  # type: ignore[attr-defined]


def lose_leaders(
    seed: int, folder: Path, expected: dict[str, Any], lives: Iterable[float] | None = None
) -> Found:
    """Kill leaders, until one has gone on from their ledger to the end.

    Args:
        seed: Decides how many ranks there are, and when leaders are killed.
        folder: The folder for the ledger.
        expected: The right results.
        lives: The seconds that each leader has to live, if not at random.
    """
    draw = random.Random(seed)
    size = draw.randint(1, 4)
    report, predictions = folder / f"report-{seed}.json", folder / f"predictions-{seed}"
    command = [
        sys.executable, "-m", "disteval.cli", "eval", TASK, "--world-size", str(size), "--force",
        "--ledger", str(folder / f"ledger-{seed}"), "--json", str(report), "--quiet",
        "--predictions", str(predictions),
    ]  # fmt: skip
    environment = os.environ | {
        lease_task.SECONDS: str(2 * _BATCH_SECONDS),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    if lives is None:
        lives = (draw.uniform(*_LEADER_LIVES) for _ in range(draw.randint(1, _MOST_LEADERS)))
    begin, killed = time.monotonic(), 0
    for life in itertools.chain(lives, [None]):
        leader = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            if life is not None:  # from when it lends leases, or else from its start
                announced = folder / f"ledger-{seed}" / "leader.json"
                announced.unlink(missing_ok=True)
                wait_for(partial(_has_begun, announced, leader), _START_SECONDS)
            _, told = leader.communicate(timeout=_LAST_LEADER_SECONDS if life is None else life)
            break
        except subprocess.TimeoutExpired:
            below = processes_below(leader.pid)
            leader.kill()
            leader.communicate()
            killed += 1
            if left := left_over(below):
                return Found(seed, size, {}, killed, f"processes {left} are left", 0.0)
            if life is None:
                late = f"the last leader did not end within {_LAST_LEADER_SECONDS:g} s"
                return Found(seed, size, {}, killed, late, time.monotonic() - begin)
        finally:
            leader.kill()  # where this program is interrupted
    if leader.returncode:
        wrong = f"exit status {leader.returncode}: {told.strip()}"
    else:
        wrong = judge(json.loads(report.read_text()), expected) or judge_predictions(predictions)
    return Found(seed, size, {}, killed, wrong, time.monotonic() - begin)


def _has_begun(announced: Path, leader: subprocess.Popen[str]) -> bool:
    return announced.exists() or leader.poll() is not None


def main() -> int:
    """Do the runs, print what came of them, and return 1 unless all results were right."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no leader is left
    parser = argparse.ArgumentParser(prog="python -m suites.faults.leases")
    parser.add_argument("--runs", type=int, default=200, help="runs that lose ranks")
    parser.add_argument("--leaders", type=int, default=50, help="leaders to kill at least")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this time")
    options = parser.parse_args()
    expected = right()
    end = time.monotonic() + options.seconds
    found: list[Found] = []
    for seed in range(options.first, options.first + options.runs):
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory(prefix="leases-") as name:
            found.append(_told(lose_ranks(seed, expected, Path(name))))
    leaders: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="leases-") as name:
        seed = options.first
        # What goes wrong before a leader can be killed counts too, so that this comes to an end.
        while (
            sum(one.lost or bool(one.wrong) for one in leaders) < options.leaders
            and time.monotonic() < end
        ):
            leaders.append(_told(lose_leaders(seed, Path(name), expected)))
            seed += 1
    _summarise(found, leaders)
    if not found + leaders:
        print("nothing was lost, so nothing was proved")
    return int(not found + leaders or any(one.wrong for one in found + leaders))


def _told(one: Found) -> Found:
    if one.wrong:
        print(f"seed {one.seed}, {one.world_size} ranks, {one.drawn}: {one.wrong}", flush=True)
    return one


def _summarise(found: list[Found], leaders: list[Found]) -> None:
    kinds = Counter(how for one in found for how in one.drawn.values())
    drawn = sum(len(one.drawn) for one in found)
    print(
        f"{len(found)} runs of 2 to 6 ranks, {drawn} losses drawn "
        f"({', '.join(f'{how} {count}' for how, count in sorted(kinds.items()))}), "
        f"{sum(one.lost for one in found)} before the end; "
        f"{sum(not one.wrong for one in found)} right to the last bit; "
        f"{sum(one.seconds for one in found):.0f} s, the longest "
        f"{max((one.seconds for one in found), default=0):.1f} s"
    )
    print(
        f"{sum(one.lost for one in leaders)} leaders killed in {len(leaders)} evaluations; "
        f"{sum(not one.wrong for one in leaders)} right to the last bit; "
        f"{sum(one.seconds for one in leaders):.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
