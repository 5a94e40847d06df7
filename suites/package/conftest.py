"""The wheel and the sdist, built once, and an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OF_THIS_RUN = ("DISTEVAL_", "PYTHON", "PYTEST_", "COVERAGE_", "CIFAR10_ROOT")


@dataclass(frozen=True)
class Built:
    """The two published files."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder outside of the clone."""

    path: Path
    folder: Path

    def run(
        self, *command: str, seconds: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as after ``activate``, without variables of this test run."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THIS_RUN)}
        path = os.pathsep.join([str(self.path / "bin"), kept.get("PATH", os.defpath)])
        return subprocess.run(
            command,
            cwd=self.folder,
            env=kept | {"PATH": path, "VIRTUAL_ENV": str(self.path), "COLUMNS": "200"} | variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip

    def install(self, *requirements: str) -> None:
        """Install with pip."""
        done = self.run("python", "-m", "pip", "install", "-q", *requirements, seconds=300)
        assert done.returncode == 0, done.stderr


def run_here(*command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python in the clone."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def clone() -> Path:
    """Return the root of the clone, or skip the test if there is no clone."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the project's files are not part of an installed package; run it from a clone")
    return ROOT


@pytest.fixture(scope="session")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    done = run_here("build", "--outdir", str(folder), seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Create an environment with the wheel, its conformance extra and pip."""
    root = tmp_path_factory.mktemp("fresh")
    done = run_here("virtualenv", "-q", str(root / "env"))
    assert done.returncode == 0, done.stderr
    (root / "outside").mkdir()
    fresh = Environment(root / "env", root / "outside")
    fresh.install(f"{built.wheel}[conformance]")
    return fresh
