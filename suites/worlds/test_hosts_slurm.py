"""SLURM over two hosts: what ``srun -N 2`` starts is led, and evaluates each sample once."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from suites.helpers.hosts import INTERFACE, Hosts, ended
from suites.helpers.needs import needs
from suites.helpers.slurm import skip, skip_without_slurm, slurm
from suites.worlds.test_hosts_launched import BESIDE, DISTEVAL, TASK, check_report

SECONDS = 120
SRUN = ["srun", "-N", "2", "--ntasks-per-node", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("slurm")
    (made / "my_task.py").write_text(TASK)
    (made / "private").mkdir(mode=0o700)
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[tuple[Hosts, dict[str, str]]]:
    skip_without_slurm()
    with Hosts(folder) as hosts, slurm(hosts, folder) as variables:
        yield hosts, variables


def run(
    cluster: tuple[Hosts, dict[str, str]], command: list[str], variables: Mapping[str, str]
) -> str:
    """Run a command of SLURM on ``alpha``, and return what it printed."""
    hosts, own = cluster
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = hosts.on_host(0, command, own | paths | dict(variables))
    printed = ended(started, SECONDS)
    assert started.returncode == 0, printed
    return printed


def evaluate(backend: str, path: Path) -> list[str]:
    return [*DISTEVAL, "eval", "my_task:task", "--backend", backend, "--json", str(path)]


def check(backend: str) -> list[str]:
    return [*DISTEVAL, "check", backend, "--rules", "1.*,3.1", "--examples", "3"]


@needs("torch_cpu")
def test_srun_evaluates_and_checks_over_a_shared_private_folder(
    cluster: tuple[Hosts, dict[str, str]], folder: Path
) -> None:
    shared = {"DISTEVAL_CONTROL_DIR": str(folder / "private")}
    run(cluster, [*SRUN, *evaluate("torch_cpu", folder / "torch.json")], shared)
    assert check_report(folder / "torch.json")["world_size"] == 2
    run(cluster, [*SRUN, *check("torch_cpu")], shared)
    assert list((folder / "private").iterdir()) == []


@pytest.mark.parametrize("how", ["none", "pmi2"])
def test_srun_needs_no_mpi(cluster: tuple[Hosts, dict[str, str]], folder: Path, how: str) -> None:
    shared, path = {"DISTEVAL_CONTROL_DIR": str(folder / "private")}, folder / f"{how}.json"
    work = evaluate("suites.mutants.sockets:Sockets", path)
    run(cluster, [*SRUN, f"--mpi={how}", *work], shared)
    assert check_report(path)["world_size"] == 2


@needs("mpi4py")
def test_mpi_in_an_allocation_needs_nothing_else(
    cluster: tuple[Hosts, dict[str, str]], folder: Path
) -> None:
    mpirun = str(BESIDE / "mpirun")
    told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True)
    if "Open MPI" in told.stdout:
        start, cable = [*SRUN, "--mpi=pmix"], {"OMPI_MCA_btl_tcp_if_include": INTERFACE}
        hosts, own = cluster
        tried = hosts.on_host(0, [*start, "true"], own)
        if "PMIx library" in (printed := ended(tried, SECONDS)):
            skip(f"SLURM needs Debian's package libpmix-dev: {printed.splitlines()[0]}")
    else:
        # Under srun --mpi=pmi2 MPICH 5.0 fails now and then, see docs/running.md.
        start = ["salloc", *SRUN[1:], mpirun, "-np", "2"]
        # UCX takes two hosts with one kernel for one, and would use memory that they don't share.
        cable = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
    run(cluster, [*start, *evaluate("mpi4py", folder / "mpi.json")], cable)
    assert check_report(folder / "mpi.json")["world_size"] == 2
    run(cluster, [*start, *check("mpi4py")], cable)
