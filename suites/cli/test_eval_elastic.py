"""``disteval eval --elastic``: ranks and leaders are lost, and the answer stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from disteval.outputs import SWITCH

from suites.helpers import lease_task
from suites.helpers.command import invoke
from suites.helpers.lease_task import TASK, command, judge, judge_predictions, right
from suites.helpers.lease_task import start as start_losing
from suites.helpers.needs import needs
from suites.helpers.processes import (
    left_over,
    mpi_variables,
    mpirun,
    processes_below,
    ranks_below,
    start_as_from_a_terminal,
    torchrun,
    wait_for,
)

SECONDS = 180.0
COMMAND = [sys.executable, "-m", "disteval.cli", "eval", TASK, "--elastic"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return right()


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a command whose batches take a while, and ends it."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, seconds: float = 0.05) -> subprocess.Popen[str]:
        environment = os.environ | mpi_variables()
        environment |= {lease_task.SECONDS: str(seconds), "OMP_NUM_THREADS": "1"}
        started.append(start_as_from_a_terminal([*command], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def run(*options: str, task: str = TASK) -> Result:
    return invoke("eval", task, "--elastic", "--launcher=threads", *options)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


LOST = {0: ("exit", 2), 1: ("SIGKILL", 0), 2: ("SIGSTOP", 1), 3: ("exception", 3)}
"""How ranks are lost, and at which of their batches."""


def test_lost_ranks_change_nothing(expected: dict[str, Any], tmp_path: Path) -> None:
    with start_losing(command(tmp_path, 5, "--timeout=4"), LOST, 0.02) as leader:
        _, told = leader.communicate(timeout=SECONDS)
    assert leader.returncode == 0, told
    report = read(tmp_path / "report.json")
    assert judge(report, expected) == ""
    assert {one["rank"] for one in report["leases"]["lost"]} & {0, 1}
    assert all("told to fail" in each for each in report["leases"]["failed"]), told
    judge_predictions(tmp_path / "predictions")


def test_ranks_that_hold_a_lease_together_find_each_other_and_are_lost_together(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    options = ("--ranks-per-lease=2", "--timeout=20")
    words = command(tmp_path, 4, *options, task="suites.helpers.lease_task:spanning")
    with start_losing(words, {1: ["exit", 3]}, 0.002) as leader:
        _, told = leader.communicate(timeout=SECONDS)
    assert leader.returncode == 0, told
    report = read(tmp_path / "report.json")
    assert judge(report, expected) == ""
    first = report["leases"]["lost"][0]
    assert (first["rank"], "status 3" in first["how"]) == (1, True)
    assert not {2, 3} & {one["rank"] for one in report["leases"]["lost"]}


def test_a_killed_leader_goes_on_from_its_ledger(tmp_path: Path, expected: dict[str, Any]) -> None:
    words = command(tmp_path, 2, "--ledger", str(tmp_path / "ledger"))
    leader = start_losing(words, {}, 0.02)
    assert wait_for(lambda: len(ranks_below(leader.pid)) == 2, SECONDS)
    below = processes_below(leader.pid)
    leader.kill()
    leader.communicate()
    assert leader.returncode == -signal.SIGKILL, "it had ended before it was killed"
    assert left_over(below) == []
    with start_losing(words, {}, 0.0) as next_one:
        _, told = next_one.communicate(timeout=SECONDS)
    assert next_one.returncode == 0, told
    assert judge(read(tmp_path / "report.json"), expected) == ""
    judge_predictions(tmp_path / "predictions")
    folders = ["--ledger", tmp_path / "ledger", "--predictions", tmp_path / "predictions"]
    again = run(*map(str, folders), "--json", str(tmp_path / "again.json"))
    assert again.exit_code == 0, again.output
    report = read(tmp_path / "again.json")
    assert judge(report, expected) == ""
    assert report["leases"]["resumed"] == lease_task.SAMPLES
    assert report["stored"] == lease_task.SAMPLES
    shown = f"of an earlier run │ {lease_task.SAMPLES} of {lease_task.SAMPLES}"
    assert shown in " ".join(again.output.split())


def test_another_command_joins_and_finishes_what_all_ranks_have_left(
    tmp_path: Path, expected: dict[str, Any], start: Start
) -> None:
    options = ["--ledger", str(tmp_path / "leases")]
    led, joined = tmp_path / "led.json", tmp_path / "joined.json"
    own_options = ["--world-size=2", "--timeout=60", "--json", str(led)]
    leader = start(*COMMAND, *options, *own_options, seconds=0.5)
    assert wait_for((tmp_path / "leases" / "leader.json").exists, SECONDS)
    assert (tmp_path / "leases" / "leader.json").stat().st_mode & 0o777 == 0o600
    assert wait_for(lambda: len(ranks_below(leader.pid)) == 2, SECONDS)
    own = ranks_below(leader.pid).values()
    for pid in own:  # so that they don't finish before the others are there
        os.kill(pid, signal.SIGSTOP)
    other = start(*COMMAND, *options, "--join", "--json", str(joined))
    assert leader.stderr is not None
    lines = [leader.stderr.readline()]
    while lines[-1] and "rank 2 " not in lines[-1]:  # ranks may be late, which is said
        lines.append(leader.stderr.readline())
    assert lines[-1], lines
    for pid in own:
        os.kill(pid, signal.SIGKILL)
    lines += leader.communicate(timeout=SECONDS)[1].splitlines()
    assert other.wait(SECONDS) == leader.returncode == 0, lines
    # It is said as well if a rank had not reported yet.
    assert any("rank 0 " in line and "SIG" in line for line in lines)
    assert judge(read(led), expected) == judge(read(joined), expected) == ""
    assert sorted(one["rank"] for one in read(led)["leases"]["lost"]) == [0, 1]


@pytest.mark.parametrize("moment", ["disteval-*/*", "leases/leader.json"])
def test_a_leader_that_is_killed_leaves_no_address_and_no_key(
    moment: str, start: Start, tmp_path: Path
) -> None:
    """The folder is there before any rank; by now or a moment later, its address and key are."""
    options = ("--world-size=2", "--ledger", str(tmp_path / "leases"))
    leader = start("env", f"TMPDIR={tmp_path}", *COMMAND, *options, seconds=0.5)
    assert wait_for(lambda: [*tmp_path.glob(moment)], SECONDS)
    leader.kill()
    left = ["disteval-*/*", "leases/leader.json*"]
    assert wait_for(lambda: not [path for each in left for path in tmp_path.glob(each)], SECONDS)


STUCK = """
import pathlib
import time
import numpy as np
from disteval import Task
from disteval.metrics import BaseMetric, Mean

def hang(*_):
    pathlib.Path("hangs").open("a").close()
    while True:
        time.sleep(1)

class Unending:
    __reduce__ = hang

class Odd(BaseMetric):
    def add(self, outputs, ids=None):
        self._extend(outputs.tolist(), ids)

    def compute_metric(self, results):
        return Unending()

class Stuck(Mean):
    from_sums = hang

def task(predict=abs, metric=Mean):
    return Task(
        samples=np.arange(10.0), predict=predict, metrics={"stuck": metric()}, batch_size=1,
        update=lambda outputs, batch: (outputs,),
    )

batch, result, pickling = task(hang), task(metric=Stuck), task(metric=Odd)
"""


@pytest.mark.parametrize(
    ("what", "canary", "words"),
    [
        ("batch", "on", "no rank has begun"),
        ("batch", "off", "0 of 10 batches"),
        ("result", "off", "10 of 10 batches"),
        ("pickling", "off", "10 of 10 batches"),
    ],
)
def test_what_hangs_on_every_rank_ends_the_evaluation(
    what: str, canary: str, words: str, tmp_path: Path, start: Start
) -> None:
    """It takes two timeouts of three seconds, and ranks get two seconds to end."""
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [*COMMAND[:4], f"stuck:{what}", *COMMAND[5:], "--world-size=2", "--timeout=3"]
    leader = start("env", "-C", str(tmp_path), f"{SWITCH}={canary}", *command)
    _, told = leader.communicate(timeout=SECONDS)
    hung = time.time() - (tmp_path / "hangs").stat().st_mtime
    assert (leader.returncode, words in told) == (1, True), told
    assert ("sent nothing for 3 s, and runs" in told) == (canary == "off"), told
    assert hung < 3 * 3 + 2


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(mpirun, marks=needs("mpi4py")), pytest.param(torchrun, marks=needs("torch_cpu"))],
)
def test_a_rank_of_somebodys_launcher_may_be_killed(
    start: Start, launcher: Callable[[int], Any], tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Rank 0 takes part at once, and would leave nothing to ranks that start late, so it fails."""
    report = tmp_path / "r.json"
    faults = json.dumps({"0": ["exception", 0], "1": ["SIGKILL", 0]})
    words = [*launcher(3), *COMMAND, "--json", str(report)]
    job = start("env", f"{lease_task.FAULTS}={faults}", *words)
    printed, told = job.communicate(timeout=SECONDS)
    assert job.returncode == 0, printed + told
    assert judge(read(report), expected) == ""
    assert {"rank": 1, "how": "killed by SIGKILL"} in read(report)["leases"]["lost"]


@pytest.mark.parametrize(
    ("task", "status", "words"),
    [
        ("own:raises", 1, ("ValueError", "no data today")),
        ("own:missing", 2, ("own", "'missing'")),
        ("own:gathers", 2, ("--elastic",)),
        ("own:differs", 2, ("name", "first", "second", "rank 0", "rank 1")),
    ],
)
def test_what_all_ranks_raise_is_told_at_the_end_and_is_the_exit_status(
    task: str, status: int, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "own.py").write_text(
        "def raises():\n    raise ValueError('no data today')\n"
        "def gathers(backend):\n    backend.all_gather_object(0)\n"
        "import disteval, disteval.metrics\nnames = ['second', 'first']\n"
        "def differs():\n    return disteval.Task(samples=[1.0] * 9, predict=abs, "
        "metrics={'mean': disteval.metrics.Mean()}, name=names.pop())\n"
    )
    done = run("--world-size=2", task=task)
    assert done.exit_code == status, done.output
    for word in words:
        assert word in done.output.splitlines()[-1]


@pytest.mark.parametrize("first", ["exception", "exit"])
def test_an_evaluation_without_ranks_ends_at_once_and_says_why(tmp_path: Path, first: str) -> None:
    words = command(tmp_path, 2, "--timeout=1000")
    with start_losing(words, {0: [first, 1], 1: ["exception", 3]}, 0.0) as leader:
        _, told = leader.communicate(timeout=60)
    assert (leader.returncode, "told to fail" in told) == (1, True)
    assert not (tmp_path / "report.json").exists()
