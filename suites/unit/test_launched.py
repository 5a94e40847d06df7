"""The variables of launchers say how many processes there are, or are refused in a sentence."""

from __future__ import annotations

import pytest
from disteval import UsageError
from disteval.launched import Job, launched_job

ELASTIC = {"TORCHELASTIC_RUN_ID": "none"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        (ELASTIC | {"RANK": "1", "WORLD_SIZE": "3"}, Job("torchrun", 1, 3, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, Job("mpirun", 0, 1, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, Job("mpirun", 2, 4, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Job("mpirun", 0, 2, 2)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, Job("horovodrun", 0, 2, 2)),
        (SLURM, Job("srun", 1, 2, 2)),
        # A batch script is one process, however many tasks its job may start.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Job("a launcher with RANK and WORLD_SIZE", 1, 2, 2)),
        ({"WORLD_SIZE": "2"}, None),
    ],
)
def test_a_launchers_variables_say_which_rank_this_is(
    variables: dict[str, str], job: Job | None
) -> None:
    assert launched_job(variables) == job


def test_the_launcher_that_started_the_ranks_comes_before_the_one_that_started_it() -> None:
    torchrun = ELASTIC | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert launched_job(SLURM | torchrun) == Job("torchrun", 3, 4, 2)
    assert launched_job(SLURM | {"PMI_RANK": "0", "PMI_SIZE": "1"}) == Job("srun", 1, 2, 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK is 'x', and a launcher sets it to a whole"),
        ({"PMI_RANK": "0", "PMI_SIZE": "0"}, "PMI_SIZE is '0', .* whole number from 1 up"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 is not a rank of WORLD_SIZE=2, .* 0 to 1"),
        (ELASTIC | {"WORLD_SIZE": "2"}, "TORCHELASTIC_RUN_ID is set without RANK"),
        (ELASTIC, "TORCHELASTIC_RUN_ID is set without RANK and WORLD_SIZE"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1 .* no variable says how many"),
    ],
)
def test_variables_that_no_launcher_sets_are_refused(
    variables: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launched_job(variables)
