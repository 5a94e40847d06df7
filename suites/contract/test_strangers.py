"""A process of another user that takes a rank's place can't have its bytes opened."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly

_NAMESPACES = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
_SECONDS = 180


@needs("torch_cpu")
def test_a_stranger_that_takes_a_ranks_place_in_gloo_is_refused(tmp_path: Path) -> None:
    _skip_without_namespaces()
    script = [sys.executable, "-m", "suites.contract.attacked", str(tmp_path)]
    ended = run_plainly([*_NAMESPACES, *script], Path.cwd(), _SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    served, marked, outcomes = json.loads(ended.stdout)
    assert served, (outcomes, ended.stderr)
    assert not marked
    *before, (refused, seconds) = outcomes
    assert all(outcome == [[0, 1]] * 2 for outcome, _ in before)
    assert ("FrameError" in refused, "rank 1" in refused) == (True, True), refused
    assert seconds < 60


def _skip_without_namespaces() -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to start a process of another user")
    asked = subprocess.run([*_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"unshare is refused: {asked.stderr.strip()}")
