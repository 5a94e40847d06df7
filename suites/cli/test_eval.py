"""``disteval eval`` works as a user starts it."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from suites.helpers import lease_task
from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.pictures import SIZES
from suites.helpers.processes import (
    collectives_left_below,
    mpirun,
    run_plainly,
    start_as_from_a_terminal,
    torchrun,
    wait_for,
)

PICTURES = SIZES["test"]
DISTEVAL = [sys.executable, "-m", "disteval.cli"]


def run(*arguments: str, prefix: tuple[str, ...]) -> Any:
    """Run a command that does not get the data folder of this test run."""
    words = ["env", "--unset=CIFAR10_ROOT", *prefix, *DISTEVAL, "eval", *arguments]
    return run_plainly(words, Path.cwd(), 180)


@needs("torch")
def test_the_report_is_whole_and_the_table_says_the_same(
    small_cifar10: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    options = ("--batch-size=50", "--topk=1,5,10", f"--data={small_cifar10}", f"--json={path}")
    done = invoke("eval", "--backend=non_dist", *options, CIFAR10_ROOT=None)
    assert done.exit_code == 0, done.stderr
    report = json.loads(path.read_text())
    found = report["metrics"]["accuracy"]
    assert {"top1", "top5", "top10"} <= found.keys()
    assert found["top10"] == 1.0
    expected = {
        "size": PICTURES, "padded": 0, "coverage": "exact",
        "world_size": 1, "batch_size": 50,
        "backend": "non_dist", "framework": "torch", "device": "cpu",
        "task": "ResNet-18 on cifar10/test",
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert report["samples_per_second"] == pytest.approx(PICTURES / report["seconds"])
    assert {"python", "numpy", "torch", "disteval-harness"} <= report["versions"].keys()
    right = found["correct_top1"]
    assert found["top1"] == right / PICTURES
    words = " ".join(done.stdout.replace("│", "").split())
    assert f"accuracy top1 {right / PICTURES:.6g} " in words and f"correct_top1 {right} " in words
    # A bar is for terminals; a busy machine may have said that ranks take long to start.
    assert "samples" not in done.stderr


@needs("mpi4py")
def test_under_a_launcher_it_joins(tmp_path: Path) -> None:
    """As it does under torchrun, see `suites/worlds/test_hosts_launched.py`."""
    path = tmp_path / "r.json"
    done = run(lease_task.TASK, "--backend=mpi4py", f"--json={path}", prefix=mpirun(3))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert (report["world_size"], lease_task.judge(report, lease_task.right())) == (3, "")
    assert done.stdout.count(" top1 ") == 1


@needs("mpi4py", "torch")
def test_under_mpirun_wrong_usage_is_said_once_and_nobody_waits() -> None:
    wrong = {"--world-size=4 --backend=mpi4py": "--world-size 4", "--backend=non_dist": "size 3"}
    for arguments, message in wrong.items():
        begin = time.monotonic()
        done = run(*arguments.split(), prefix=mpirun(3))
        assert done.returncode != 0
        assert done.stderr.count(message) == 1
        assert time.monotonic() - begin < 30


@needs("mpi4py", "torch")
def test_mpi_under_torchrun_is_refused_in_a_sentence_however_late_rank_0_is() -> None:
    """Torchrun ends all ranks when one has ended, so the others wait for what rank 0 tells."""
    late = ("bash", "-c", '[ "$RANK" = 0 ] && sleep 3; exec "$0" "$@"')
    done = run("--backend=mpi4py", prefix=(*torchrun(3), *late))
    assert done.returncode != 0
    assert "top1" not in done.stdout
    told, _, report = done.stderr.partition("Root Cause")
    assert told.count("disteval eval: ") == 1
    assert "'mpirun'" in told and "'mpirun'" in report


@needs("torch")
def test_ctrl_c_while_ranks_that_are_threads_compute(tmp_path: Path) -> None:
    """Python's end tears threads down, and torch aborts the process in one that computes."""
    private = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    command = start_as_from_a_terminal(
        [*DISTEVAL, "eval", "--backend=threads", "--no-progress", "--data=embedded"],
        env=os.environ | private,
    )

    assert wait_for(lambda: collectives_left_below(tmp_path) > 0)
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=60)
    assert (command.returncode, stderr.count("\n")) == (130, 1)
