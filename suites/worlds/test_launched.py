"""The variables of launchers say how many processes there are, or are refused in a sentence."""

from pathlib import Path

import pytest
from disteval import UsageError
from disteval.launched import LaunchedJob, launched_job, outside_environment
from disteval.world import detect_outer_world
from disteval.world.attached import LeaderSearch, named_leader

ELASTIC = {"TORCHELASTIC_RUN_ID": "none"}
TORCHRUN = ELASTIC | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
PADDLE = LaunchedJob("paddle.distributed.launch", 1, 2, 2)
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
SLURM3 = SLURM | {
    "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}  # fmt: skip
STALE = {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        (ELASTIC | {"RANK": "1", "WORLD_SIZE": "3"}, LaunchedJob("torchrun", 1, 3, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, LaunchedJob("mpirun", 0, 1, 1)),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
            LaunchedJob("mpirun", 2, 4, 2),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            LaunchedJob("mpirun", 0, 2, 2),
        ),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, LaunchedJob("horovodrun", 0, 2, 2)),
        (SLURM, LaunchedJob("srun", 1, 2, 2)),
        # A batch script is one process, however many tasks its job may start.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            LaunchedJob("a launcher with RANK and WORLD_SIZE", 1, 2, 2),
        ),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "first"}, None),
        ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, PADDLE),
        # Tasks of srun on hosts that have different numbers of them.
        (SLURM3 | {"SLURM_NODEID": "1"}, LaunchedJob("srun", 1, 5, 2)),
        (SLURM3 | {"SLURM_NODEID": "2"}, LaunchedJob("srun", 1, 5, 1)),
        (SLURM3 | {"PMIX_RANK": "4", "SLURM_NODEID": "2"}, LaunchedJob("mpirun", 4, 5, 1)),
        # Open MPI's mpirun, whose daemons srun has started.
        (
            SLURM | {"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            LaunchedJob("srun", 1, 2, 2),
        ),
        # The counts of another step are no help.
        (SLURM3 | {"SLURM_NODEID": "7"}, LaunchedJob("srun", 1, 5, 2)),
        # What a script derives from its launcher's variables is no contradiction.
        (SLURM | {"RANK": "1", "WORLD_SIZE": "2"}, LaunchedJob("srun", 1, 2, 2)),
        # The launcher that started the ranks comes before the one that started it.
        (SLURM | TORCHRUN, LaunchedJob("torchrun", 3, 4, 2)),
        (SLURM | {"PMI_RANK": "0", "PMI_SIZE": "1"}, LaunchedJob("srun", 1, 2, 2)),
        # A task of which only the job's variables are left.
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, LaunchedJob("srun", 1, 2, 1)),
        (SLURM | {"SLURM_NTASKS": "8"}, LaunchedJob("srun", 1, 2, 2)),
    ],
)
def test_a_launchers_variables_say_which_rank_this_is(
    variables: dict[str, str], job: LaunchedJob | None
) -> None:
    assert launched_job(variables) == job


def test_mlx_launch_names_a_file_with_an_entry_for_each_rank(tmp_path: Path) -> None:
    hosts = tmp_path / "ring.json"
    hosts.write_text('[["127.0.0.1:5000"], ["127.0.0.1:5001", "127.0.0.1:5002"]]')
    variables = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": "1"}
    assert launched_job(variables) == LaunchedJob("mlx.launch", 1, 2, 2)
    hosts.write_text("\n")
    assert launched_job(variables | {"MLX_RANK": "0"}) == LaunchedJob("mlx.launch", 0, 1, 1)
    for text in ("[", "5"):
        hosts.write_text(text)
        with pytest.raises(UsageError, match="MLX_HOSTFILE"):
            launched_job(variables)
    with pytest.raises(UsageError, match="MLX_RANK=1"):
        launched_job({"MLX_RANK": "1"})


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ["PMI_RANK", "'x'"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "0"}, ["PMI_SIZE", "'0'"]),
        ({"RANK": "5", "WORLD_SIZE": "2"}, ["RANK=5", "WORLD_SIZE=2"]),
        (ELASTIC | {"WORLD_SIZE": "2"}, ["RANK"]),
        (ELASTIC, ["RANK", "WORLD_SIZE"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK=1", "PMI_SIZE"]),
        ({"PMI_RANK": "0"}, ["PMI_RANK=0", "PMI_SIZE", "mpirun"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["COMM_WORLD_RANK=0", "COMM_WORLD_SIZE"]),
        ({"SLURM_PROCID": "1"}, ["SLURM_PROCID=1", "STEP_NUM_TASKS", "srun"]),
        ({"PADDLE_TRAINER_ID": "x"}, ["TRAINER_ID=x", "TRAINERS_NUM"]),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, ["PMI_RANK", "'-1'"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "9" * 5000}, ["PMI_SIZE", "'9999"]),
        (STALE | {"PMI_RANK": "0", "PMI_SIZE": "2"}, ["RANK=3", "PMI_RANK=0"]),
        (STALE | SLURM, ["RANK=3", "SLURM_PROCID=1"]),
        (SLURM | {"SLURM_PROCID": "2"}, ["SLURM_PROCID=2", "NUM_TASKS=2"]),
    ],
)
def test_variables_that_no_launcher_sets_are_refused(
    variables: dict[str, str], found: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        launched_job(variables)
    assert [word for word in found if word not in str(caught.value)] == []
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "srun -n 1"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "mpirun -np 2"),
    ],
)
def test_ranks_that_can_not_be_led_are_refused_with_what_works(
    variables: dict[str, str], remedy: str
) -> None:
    with pytest.raises(UsageError, match=rf"\b2\b.* rank 1\b.*{remedy}"):
        detect_outer_world(variables)


def test_one_task_of_slurm_is_alone_and_srun_with_pmi_is_joined() -> None:
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert detect_outer_world(alone) is None
    for more, launcher in (({"PMI_RANK": "1", "PMI_SIZE": "2"}, "mpirun"), ({}, "srun")):
        outer = detect_outer_world(SLURM | more)
        assert outer is not None and outer[:3] == (launcher, 1, 2)


def test_ranks_that_a_task_starts_are_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert launched_job(outside_environment()) is None
    assert outside_environment()["SLURM_NTASKS"] == "2"


@pytest.mark.parametrize(
    ("mode", "text", "leader", "found"),
    [
        (0o640, "k" * 64, "localhost:29400", "0640"),
        (0o600, "short", "localhost:29400", r"\b5\b.*\b32\b"),
        (0o600, "k" * 64, "localhost", "'localhost'"),
        (0o600, "k" * 64, "", "DISTEVAL_LEADER"),
        (0o600, "k" * 64, "node..1:29400", r"'node\.\.1'"),
        (0o600, "k" * 64, "[::1]:29400", r"'\[::1\]'.* IPv4"),
    ],
)
def test_a_leader_and_a_key_that_others_may_know_are_refused(
    mode: int, text: str, leader: str, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(mode)
    given = {"DISTEVAL_LEADER": leader, "DISTEVAL_KEY_FILE": str(path)}
    with pytest.raises(UsageError, match=found):
        named_leader("a job", given)


def test_a_job_has_one_id_whatever_its_hosts_count_and_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text("k" * 64)
    given = {"DISTEVAL_LEADER": "localhost:29400", "DISTEVAL_KEY_FILE": str(tmp_path / "key")}
    found = []
    jobs = [(1, 0, "alpha"), (1, 1, "alpha"), (1, 1, "10.0.0.1"), (2, 1, "alpha")]
    for port, restarts, address in jobs:
        told = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        for name, value in (told | {"MASTER_PORT": str(port), "MASTER_ADDR": address}).items():
            monkeypatch.setenv(name, value)
        outer = LaunchedJob("torchrun", 0, 2, 1)
        found.append((outer.id(), named_leader(outer.purpose(), given).key))
    ids, keys = zip(*found, strict=True)
    assert ids[0] == ids[1]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_leader_never_listens_on_all_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 64)
    path.chmod(0o600)
    monkeypatch.setenv("DISTEVAL_LEADER", "0.0.0.0:29400")
    monkeypatch.setenv("DISTEVAL_KEY_FILE", str(path))
    with pytest.raises(UsageError, match=r"\b0\.0\.0\.0\b"):
        LeaderSearch(LaunchedJob("mpirun", 0, 2, 1)).own_address()
