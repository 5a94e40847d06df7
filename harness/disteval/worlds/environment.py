"""The worker group that somebody's launcher put this process in, as its environment tells.

The launchers are ``mpirun``, ``torchrun`` and ``horovodrun``, on one host; other ranks are refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from disteval.default_backend import is_rank_of_world
from disteval.errors import UsageError
from disteval.launched import Job, launched_job
from disteval.worlds.control_directory import folder
from disteval.worlds.watchdog import started_at

_VARIABLES = (
    "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "HYDI_",
    "HOROVOD_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "PADDLE_",
)  # fmt: skip

_SETS_JOB = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    "horovodrun": ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    "mpirun": ("PMIX_NAMESPACE",),
}
"""The launchers whose ranks can be led, and the variables that tell one job from another."""

_SRUN = (
    "Start them with srun --mpi=pmi2 -n {0}, or one task that starts the ranks itself, with "
    "srun -n 1 and --world-size {0}."
)
_ANOTHER = (
    "Start them with mpirun -np {0} or torchrun --no-python --nproc-per-node {0}, or one process "
    "that starts the ranks itself, with --world-size {0}."
)


class OuterWorld(Job):
    """The worker group that ``mpirun``, ``torchrun`` or ``horovodrun`` put this process in."""

    def control_directory(self) -> Path:
        """Return where the job's ranks, all of one host, find their leader.

        Anybody can compute its name, and nobody else can create it.
        """
        job = ":".join(os.environ.get(name, "") for name in _SETS_JOB[self.launcher]) or _parent()
        digest = hashlib.sha256(f"{self.launcher} {job}".encode()).hexdigest()[:16]
        return folder() / f"job-{digest}"


def detect_outer_world(environ: Mapping[str, str] = os.environ) -> OuterWorld | None:
    """Return the worker group that a launcher's variables describe; None without a launcher.

    This decides who leads, and nothing else: the backend says whether it has joined a group.

    Raises:
        UsageError: The variables are wrong, or the launcher's ranks can't be led.
    """
    job = launched_job(environ)
    if job is None or (job.launcher not in _SETS_JOB and job.world_size == 1):
        return None
    if job.launcher not in _SETS_JOB:
        remedy = (_SRUN if job.launcher == "srun" else _ANOTHER).format(job.world_size)
        raise UsageError(f"{job}. disteval can't join them, and each would do all work. {remedy}")
    if job.ranks_on_host < job.world_size:
        raise UsageError(
            f"{job}. They are on several hosts, at most {job.ranks_on_host} of them on this one, "
            f"and disteval leads the ranks of {job.launcher} on one host only. Start all of them "
            f"on one host, or start Ray on these hosts and run the command once, without "
            f"{job.launcher}, with --launcher ray"
        )
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
    return {k: v for k, v in os.environ.items() if not k.startswith(_VARIABLES)}


def _parent() -> str:
    # MPICH's ranks of one host are children of one proxy; its start time distinguishes it from a
    # later process with the same number.
    parent = os.getppid()
    return f"{parent}:{started_at(parent)}"
