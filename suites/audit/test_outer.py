"""Inside mpirun and torchrun the audit uses the ranks that are there, and says how to replay."""

import re
import shlex
from pathlib import Path

import pytest

from suites.helpers.needs import each, needs
from suites.helpers.processes import run_plainly

LOOPS = """
from disteval import get_dist_backend

def right(case):
    print("printed by it")
    own = range(case.rank, len(case.dataset), case.world_size)
    return {"count": sum(get_dist_backend().all_gather_object(len(own)))}

def wrong(case):
    return {"count": sum(get_dist_backend().all_gather_object(-(-len(case.dataset) // 2)))}

calls = []

def hangs(case):
    calls.append(case)
    while case.rank == 0 and len(calls) > 1:  # the first call may take longer
        pass
    return right(case)

def alone(case):
    import os
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    own = [case.dataset[i] for i in range(rank, len(case.dataset), ranks)]
    mine = sum(float(sample["value"]) for sample in own)
    return {"sum": sum(get_dist_backend().all_gather_object(mine)) if ranks > 1 else mine}
"""
STARTED_BY = {"mpi4py": "mpirun -np 2", "torch_cpu": "torchrun --no-python --nproc-per-node 2"}


@pytest.mark.parametrize("backend", each(*STARTED_BY))
def test_a_launchers_ranks_are_audited_and_the_replay_is_a_command(
    backend: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LOOPS)
    audit = f"{STARTED_BY[backend]} disteval audit mine:"
    wrong = run_plainly(shlex.split(f"{audit}wrong --first --backend {backend}"), tmp_path, 120.0)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    finding = "counted twice: count is 2 instead of 1"
    assert finding in wrong.stdout
    replay = next(line for line in wrong.stdout.splitlines() if "again: " in line)
    command = shlex.split(replay.partition("again: ")[2])
    assert command[: len(STARTED_BY[backend].split())] == STARTED_BY[backend].split()
    if backend == "mpi4py":  # torchrun takes seconds, and what it starts is the same
        again = run_plainly(command, tmp_path, 120.0)
        assert again.returncode == 1, again.stdout + again.stderr
        assert finding in again.stdout


@needs("mpi4py")
def test_a_right_loop_is_sound_there_and_its_lines_stay_out_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOOPS)
    command = f"{STARTED_BY['mpi4py']} disteval audit mine:right --backend mpi4py"
    right = run_plainly(shlex.split(command), tmp_path, 120.0)
    assert right.returncode == 0, right.stdout + right.stderr
    assert ("mine:right" in right.stdout, "printed by it" in right.stdout) == (True, False)


@needs("mpi4py")
def test_a_loop_that_finds_no_rank_in_the_environment_is_told_that_each_counts_alone(
    tmp_path: Path,
) -> None:
    """As accelerate's loops do, where no torchrun has set RANK and WORLD_SIZE."""
    (tmp_path / "mine.py").write_text(LOOPS)
    command = f"{STARTED_BY['mpi4py']} disteval audit mine:alone --backend mpi4py"
    found = run_plainly(shlex.split(command), tmp_path, 120.0)
    said = " ".join(found.stdout.split())
    assert found.returncode == 1 and "mine:alone is wrong" in said, found.stdout + found.stderr
    for named in ("counted alone", "ranks 0 and 1", "WORLD_SIZE", "torchrun"):
        assert named in said


@needs("mpi4py")
def test_a_hang_inside_mpirun_is_reported_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOOPS)
    command = "mpirun -np 2 disteval audit mine:hangs --case N=1,B=1,W=2 --timeout 1"
    found = run_plainly(shlex.split(f"{command} --backend mpi4py"), tmp_path, 120.0)
    assert found.returncode != 0
    expected = (
        r"rank 0 is in hangs \(mine\.py, line 1[567]\); "
        r"rank 1 waits in all_gather_object \(mine\.py, line 7\): no progress for 1 s"
    )
    assert re.search(expected, found.stdout), found.stdout + found.stderr
