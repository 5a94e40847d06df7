"""A run of the fault session ends with the session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from suites.processes import left_over, processes_below, wait_for


def test_a_run_ends_when_its_session_has_ended(tmp_path: Path) -> None:
    spec = {"command": ["sleep", "600"], "environment": dict(os.environ), "draw": None}
    spec |= {"isolated": False, "outer": False, "world_size": 1, "what": "World"}
    spec |= {"usual": 1.0, "limit": 600.0, "grace": 600.0}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    run = subprocess.Popen(
        [sys.executable, "-m", "suites.faults.inside", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    below = wait_for(lambda: processes_below(run.pid))
    _, told = run.communicate(timeout=60)  # which ends its input
    assert (run.returncode, told) == (1, "the session has ended\n")
    assert below
    assert left_over(below) == []
