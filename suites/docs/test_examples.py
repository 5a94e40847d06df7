"""The examples run as a user starts them, and all print the same accuracy."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disteval.worlds.launchers import MpirunLauncher

from suites.requirements import backend_class

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def clone() -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not part of an installed package; run this from a clone")


def accuracy(data: Path, *command: str) -> dict[str, float]:
    done = subprocess.run(
        command,
        env=os.environ | {"CIFAR10_ROOT": str(data)} | MpirunLauncher().environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = ast.literal_eval(line)
    assert isinstance(found, dict)
    return found


def test_single(small_accuracy: dict[str, float], small_cifar10: Path) -> None:
    assert small_accuracy["top1"] > 0.7
    script = str(EXAMPLES / "cifar10_eval_single.py")
    assert accuracy(small_cifar10, sys.executable, script) == small_accuracy


def test_torch_dist(small_accuracy: dict[str, float], small_cifar10: Path) -> None:
    backend_class("torch_cpu")
    script = str(EXAMPLES / "cifar10_eval_torch_dist.py")
    assert accuracy(small_cifar10, sys.executable, script) == small_accuracy


def test_mpi4py(small_accuracy: dict[str, float], small_cifar10: Path, tmp_path: Path) -> None:
    backend_class("mpi4py")
    mpirun = MpirunLauncher().commands(tmp_path, 3)[0][:3]
    script = str(EXAMPLES / "cifar10_eval_mpi4py.py")
    assert accuracy(small_cifar10, *mpirun, sys.executable, script) == small_accuracy
