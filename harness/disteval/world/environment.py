"""The worker group that somebody's launcher put this process in, as its environment tells.

The launchers are ``mpirun``, ``torchrun``, ``horovodrun`` and ``srun``, on any number of hosts; the
ranks of others are refused.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from disteval.default_backend import is_rank_of_world
from disteval.errors import UsageError
from disteval.launched import LAUNCHERS, Job, launched_job
from disteval.world.control_directory import folder

_SRUN = (
    "Start them with srun in a shell where SLURM_STEP_NUM_TASKS is not removed, or one task that "
    "starts the ranks itself, with srun -n 1 and --world-size {0}."
)
_ANOTHER = (
    "Start them with mpirun -np {0} or torchrun --no-python --nproc-per-node {0}, or one process "
    "that starts the ranks itself, with --world-size {0}."
)


class OuterWorld(Job):
    """The worker group that ``mpirun``, ``torchrun`` or another launcher put this process in."""

    def job_id(self) -> str:
        """Return an id of the job that is equal on all hosts; an empty text if there is none."""
        return self._told(LAUNCHERS[self.launcher].job)

    def purpose(self) -> str:
        """Return what distinguishes this job from others that have the same leader's address.

        It is equal on all hosts; not every launcher's jobs can be told apart.
        """
        names = [name for name in LAUNCHERS[self.launcher].job if name != "MASTER_ADDR"]
        return f"{self.launcher} {self.world_size} {self._told(names)}"

    def _told(self, names: Sequence[str]) -> str:
        found = [os.environ.get(name, "") for name in names]
        return ":".join(found) if any(found) else ""

    def control_directory(self) -> Path:
        """Return where the job's ranks, which share it, find their leader.

        Anybody can compute its name, and nobody else can create it.
        """
        job = self.job_id() or _parent()
        digest = hashlib.sha256(f"{self.launcher} {job}".encode()).hexdigest()[:16]
        return folder() / f"job-{digest}"


def detect_outer_world(environ: Mapping[str, str] = os.environ) -> OuterWorld | None:
    """Return the worker group that a launcher's variables describe; None without a launcher.

    This decides who leads, and nothing else: the backend says whether it has joined a group.

    Raises:
        UsageError: The variables are wrong, or the launcher's ranks can't be led.
    """
    job = launched_job(environ)
    if job is None or (job.world_size == 1 and not LAUNCHERS[job.launcher].leads_one):
        return None
    # Task 0 of such a step can't be told from a batch script, and would not lead.
    is_step = job.launcher != "srun" or "SLURM_STEP_NUM_TASKS" in environ
    if not LAUNCHERS[job.launcher].job or not is_step:
        remedy = (_SRUN if job.launcher == "srun" else _ANOTHER).format(job.world_size)
        raise UsageError(f"{job}. disteval can't join them, and each would do all work. {remedy}")
    return OuterWorld(*job)


def refuse_worlds_of_each(remedy: str) -> None:
    """Refuse to start ranks in each of several processes that a launcher has started.

    A rank of a world may start another world: its function was written to run in each rank.

    Args:
        remedy: What the caller can do instead, as sentences.

    Raises:
        UsageError: Says who started this process; or the launcher's variables are wrong.
    """
    job = None if is_rank_of_world() else launched_job()
    if job is not None and job.world_size > 1:
        raise UsageError(f"{job}; each of them would start ranks of its own. {remedy}")


def outside_environment() -> dict[str, str]:
    """Return the environment without the variables that an outer launcher set for this rank alone.

    Processes that a rank starts are not ranks of that launcher's job.
    """
    if launched_job() is None:
        return dict(os.environ)
    sets = tuple(start for known in LAUNCHERS.values() for start in known.sets)
    return {k: v for k, v in os.environ.items() if not k.startswith(sets)}


@functools.cache  # a rank in a child of its process has the same
def _parent() -> str:
    # MPICH's ranks of one host are children of one proxy; its start time distinguishes it from a
    # later process with the same number.
    parent = os.getppid()
    try:
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:  # there is no /proc, as on macOS
        return str(parent)
    return f"{parent}:{stat.rpartition(')')[2].split()[19]}"
