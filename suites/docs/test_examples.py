"""The examples run as a user starts them, and all print the same accuracy."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disteval.worlds.launchers import MpirunLauncher

from suites.requirements import backend_class, framework

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {"top1": 0.796, "top3": 0.9336}


@pytest.fixture(autouse=True)
def clone() -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not part of an installed package; run this from a clone")


def accuracy(*command: str) -> dict[str, float]:
    done = subprocess.run(
        command,
        env={k: v for k, v in os.environ.items() if k != "CIFAR10_ROOT"}
        | MpirunLauncher().environment(),
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


def test_single() -> None:
    framework("torch")
    found = accuracy(sys.executable, str(EXAMPLES / "cifar10_eval_single.py"))
    assert found == pytest.approx(EXPECTED, abs=5e-4)


def test_torch_dist() -> None:
    backend_class("torch_cpu")
    alone = accuracy(sys.executable, str(EXAMPLES / "cifar10_eval_single.py"))
    assert accuracy(sys.executable, str(EXAMPLES / "cifar10_eval_torch_dist.py")) == alone


def test_mpi4py(tmp_path: Path) -> None:
    framework("torch")
    backend_class("mpi4py")
    alone = accuracy(sys.executable, str(EXAMPLES / "cifar10_eval_single.py"))
    mpirun = MpirunLauncher().commands(tmp_path, 3)[0][:3]
    script = str(EXAMPLES / "cifar10_eval_mpi4py.py")
    assert accuracy(*mpirun, sys.executable, script) == alone
