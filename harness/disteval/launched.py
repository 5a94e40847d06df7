"""The job that a launcher started this process in, as environment variables tell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from disteval.errors import UsageError

_VARIABLES = (
    # launcher, its own mark, rank, world size, ranks on this host
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # Before MPI: horovodrun may itself have used mpirun.
    ("horovodrun", "", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
    ("mpirun", "", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun", "", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("paddle.distributed.launch", "", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", ""),
    ("srun", "", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
    ("a launcher with RANK and WORLD_SIZE", "", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
"""From the launchers that start ranks to those that may have started such a launcher."""

_MOST_DIGITS = 9

_SLURM_HOSTS = "SLURM_STEP_NUM_NODES"


class Job(NamedTuple):
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


def launched_job(environ: Mapping[str, str] = os.environ) -> Job | None:
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
    several = (job for job in jobs if job.world_size > 1)
    return next(several, jobs[0] if jobs else None)


def _jobs(environ: Mapping[str, str]) -> Iterator[Job]:
    for launcher, mark, rank, size, on_host in _VARIABLES:
        missing = [name for name in (rank, size) if name not in environ]
        if mark in environ and missing:
            raise UsageError(
                f"{mark} is set without {' and '.join(missing)}, which {launcher} sets as well; "
                f"start this process with {launcher}, or unset {mark}"
            )
        if not missing and (not mark or mark in environ):
            world_size = _number(environ, size, 1)
            number = _number(environ, rank, 0)
            if number >= world_size:
                raise UsageError(
                    f"{rank}={number} is not a rank of {size}={world_size}, whose ranks are 0 to "
                    f"{world_size - 1}; set both as {launcher} does, or unset them"
                )
            # srun with PMI does not count the ranks of a host; of several, one has not all.
            hosts = _number(environ, _SLURM_HOSTS, 1) if _SLURM_HOSTS in environ else 1
            most = -(-world_size // hosts)
            here = _number(environ, on_host, 1) if on_host in environ else most
            yield Job(launcher, number, world_size, here)


def _refuse_rank_alone(environ: Mapping[str, str]) -> None:
    """Refuse a rank without a world size: this process might answer for all of them."""
    for launcher, _, rank, size, _ in (*_VARIABLES, ("mpirun", "", "PMIX_RANK", "PMI_SIZE", "")):
        # RANK is a common name, and SLURM gives the number 0 to a batch script, too.
        common = rank == "RANK" or (rank, environ.get(rank)) == ("SLURM_PROCID", "0")
        if rank in environ and not common:
            raise UsageError(
                f"{rank}={environ[rank]:.99} says that a launcher started this process, and no "
                f"variable, such as {size}, says how many there are; start the ranks with "
                f"{launcher}, or unset {rank}"
            )


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ[name]
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise UsageError(
            f"{name} is {text!r:.99}, and a launcher sets it to a whole number from {least} up; "
            f"set it so, or unset it"
        )
    return int(text)
