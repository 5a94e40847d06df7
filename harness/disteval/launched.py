"""The job that a launcher started this process in, as environment variables tell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from disteval.errors import UsageError

_UNKNOWN = "a launcher with RANK and WORLD_SIZE"
_MPI4PY = "disteval.set_default_dist_backend('mpi4py')"


class Known(NamedTuple):
    """What is known of a launcher.

    Attributes:
        variables: The ways in which it tells a process its place: a mark that must be set as well,
            the rank, the world size, and the number of ranks on the host.
        sets: What the variables begin with that it sets for its ranks alone.
        joins: The line that joins the processes that it has started.
        job: Variables that are equal in one job on all hosts; empty if its ranks can't be led.
        leads_one: Whether a job of one process is led, too, as its backend finds the group in it.
    """

    variables: Sequence[tuple[str, str, str, str]]
    sets: Sequence[str] = ()
    joins: str = "torch.distributed.init_process_group('gloo')"
    job: Sequence[str] = ()
    leads_one: bool = False


LAUNCHERS = {
    "torchrun": Known(
        [("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")],
        ["TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_"],
        # Not the number of restarts, which each of its agents counts for itself. The address may
        # be written in two ways; the others tell the jobs of one leading host apart.
        job=["TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR"],
        leads_one=True,
    ),
    # Before MPI: horovodrun may itself have used mpirun.
    "horovodrun": Known(
        [("", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE")],
        ["HOROVOD_"],
        "horovod.tensorflow.init()",
        ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"],
        leads_one=True,
    ),
    "mpirun": Known(
        [
            ("", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
            # Open MPI's ranks that srun --mpi=pmix starts.
            ("", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", ""),
        ],
        ["OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "HYDI_"],
        _MPI4PY,
        ["PMIX_NAMESPACE", "PMI_JOBID"],
        leads_one=True,
    ),
    "paddle.distributed.launch": Known(
        [("", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "")],
        ["PADDLE_"],
        "paddle.distributed.init_parallel_env()",
    ),
    "mlx.launch": Known(
        [("", "MLX_RANK", "MLX_HOSTFILE", "")],
        ["MLX_RANK", "MLX_HOSTFILE"],
        "disteval.set_default_dist_backend('mlx')",
    ),
    "srun": Known(
        [("", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "")],
        ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_", "SLURM_STEP_TASKS_PER_NODE"],
        f"{_MPI4PY}, and start the processes with srun --mpi=pmi2",
        ["SLURM_JOB_ID", "SLURM_STEP_ID"],
    ),
    _UNKNOWN: Known([("", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]),
}
"""From the launchers that start ranks to those that may have started such a launcher."""

_ROWS = [(name, *row) for name, known in LAUNCHERS.items() for row in known.variables]
_MOST_DIGITS = 9

_SLURM_HOSTS = "SLURM_STEP_NUM_NODES"
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"


class LaunchedJob(NamedTuple):
    """The processes that a launcher started together, and this one's place among them.

    Attributes:
        launcher: The name of the launcher's command.
        rank: The rank of this process, as the launcher counts.
        world_size: The number of processes that the launcher started.
        ranks_on_host: The number of these processes on this host.
    """

    launcher: str
    rank: int
    world_size: int
    ranks_on_host: int

    def __str__(self) -> str:
        return (
            f"{self.launcher} started {self.world_size} processes, and this one is rank {self.rank}"
        )

    def id(self) -> str:
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


def launched_job(environ: Mapping[str, str] = os.environ) -> LaunchedJob | None:
    """Return the job that a launcher's variables describe; None without a launcher.

    Raises:
        UsageError: A launcher's variables contradict each other or are incomplete.
    """
    tasks = environ.get("SLURM_NTASKS")
    if tasks and "SLURM_STEP_NUM_TASKS" not in environ and environ.get("SLURM_PROCID", "0") != "0":
        # A task, and not the batch script, whose step's variables may have been removed. Task 0
        # can't be told from the script, so no other relies on it, as if all were on other hosts.
        environ = {**environ, "SLURM_STEP_NUM_TASKS": tasks, _SLURM_HOSTS: tasks}
    jobs = list(_jobs(environ))
    if not jobs:
        _refuse_rank_alone(environ)
    several = [job for job in jobs if job.world_size > 1]
    _refuse_two_answers(several, environ)
    return next(iter([*several, *jobs]), None)


def outside_environment() -> dict[str, str]:
    """Return the environment without the variables that a launcher set for this rank alone.

    Processes that a rank starts are not ranks of that launcher's job.
    """
    if launched_job() is None:
        return dict(os.environ)
    sets = tuple(start for known in LAUNCHERS.values() for start in known.sets)
    return {k: v for k, v in os.environ.items() if not k.startswith(sets)}


def ranks_on_this_host(world_size: int) -> int:
    """Return how many ranks of a group are on this host: all of them without a launcher."""
    job = launched_job()
    return world_size if job is None else min(job.ranks_on_host, world_size)


def _jobs(environ: Mapping[str, str]) -> Iterator[LaunchedJob]:
    for launcher, mark, rank, size, on_host in _ROWS:
        if rank == "PMIX_RANK" and "OMPI_COMM_WORLD_RANK" in environ:
            continue  # its mpirun has started this rank, and SLURM that mpirun
        missing = [name for name in (rank, size) if name not in environ]
        if mark in environ and missing:
            raise UsageError(
                f"{mark} is set without {' and '.join(missing)}, which {launcher} sets as well; "
                f"start this process with {launcher}, or unset {mark}"
            )
        if not missing and (not mark or mark in environ):
            world_size = _world_size(environ, size)
            number = _number(environ, rank, 0)
            if number >= world_size:
                raise UsageError(
                    f"{rank}={number} is not a rank of {size}={world_size}, whose ranks are 0 to "
                    f"{world_size - 1}; set both as {launcher} does, or unset them"
                )
            here = _number(environ, on_host, 1) if on_host in environ else 0
            yield LaunchedJob(
                launcher, number, world_size, here or _slurm_tasks_here(environ, world_size)
            )


def _slurm_tasks_here(environ: Mapping[str, str], world_size: int) -> int:
    """Return how many of a job's ranks are on this host, as srun says; all of them without it.

    srun with PMI does not count the ranks of a host. Its counts, such as ``2(x3),1``, are those of
    another step if they do not add up.
    """
    counts: list[int] = []
    for part in environ.get(_SLURM_TASKS, "").split(","):
        if found := re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part):
            counts += [int(found[1])] * int(found[2] or 1)
    node = environ.get("SLURM_NODEID", "")
    if sum(counts) == world_size and node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    # Of several hosts, one does not have all.
    hosts = _number(environ, _SLURM_HOSTS, 1) if _SLURM_HOSTS in environ else 1
    return -(-world_size // hosts)


def _refuse_two_answers(jobs: list[LaunchedJob], environ: Mapping[str, str]) -> None:
    """Refuse RANK and WORLD_SIZE that no launcher has marked and that contradict another's.

    They may be left over in a login shell, or be those of a launcher inside the other one.
    """
    # torchrun sets these names itself.
    if len(jobs) < 2 or jobs[0].launcher == "torchrun" or jobs[-1].launcher != _UNKNOWN:
        return
    first, other = jobs[0], jobs[-1]
    if (first.rank, first.world_size) != (other.rank, other.world_size):
        rows = [row for row in _ROWS if row[0] == first.launcher and row[3] in environ]
        rank, size = next(row[2:4] for row in rows if row[2] in environ)
        raise UsageError(
            f"RANK={other.rank} and WORLD_SIZE={other.world_size} say another rank than "
            f"{rank}={first.rank} and {size}={first.world_size}, which {first.launcher} has set; "
            f"unset RANK and WORLD_SIZE if a shell has them from elsewhere, or unset {rank} if a "
            f"launcher inside {first.launcher} has set them"
        )


def _refuse_rank_alone(environ: Mapping[str, str]) -> None:
    """Refuse a rank without a world size: this process might answer for all of them."""
    for launcher, _, rank, size, _ in (("mpirun", "", "PMIX_RANK", "PMI_SIZE", ""), *_ROWS):
        # RANK is a common name, and SLURM gives the number 0 to a batch script, too.
        common = rank == "RANK" or (rank, environ.get(rank)) == ("SLURM_PROCID", "0")
        if rank in environ and not common:
            raise UsageError(
                f"{rank}={environ[rank]:.99} says that a launcher started this process, and no "
                f"variable, such as {size}, says how many there are; start the ranks with "
                f"{launcher}, or unset {rank}"
            )


def _world_size(environ: Mapping[str, str], name: str) -> int:
    if name != "MLX_HOSTFILE":
        return _number(environ, name, 1)
    import json  # for this launcher alone

    # It names a file with a list, of an entry for each rank, or with nothing for a single one.
    try:
        text = Path(environ[name]).read_text().strip()
        return len(json.loads(text)) if text else 1
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{name} is {environ[name]!r:.99}, where no list of ranks can be read ({error}); start "
            f"this process with mlx.launch, or unset {name} and MLX_RANK"
        ) from error


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ[name]
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise UsageError(
            f"{name} is {text!r:.99}, and a launcher sets it to a whole number from {least} up; "
            f"set it so, or unset it"
        )
    return int(text)
