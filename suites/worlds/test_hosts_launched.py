"""Launchers over two hosts: what a user types there evaluates each sample once."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.hosts import INTERFACE, Hosts, ended
from suites.helpers.needs import needs

SECONDS = 300
BESIDE = Path(sys.executable).parent
DISTEVAL = [str(BESIDE / "disteval")]

PLUGIN = ["-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider"]
PLUGIN += ["-p", "disteval.conformance.plugin"]

TASK = """
import numpy as np

from disteval import Task
from disteval.metrics import Accuracy


def predict(numbers):
    return np.asarray(numbers) % 4


def task():
    samples = [(n, n % 3) for n in range(101)]
    return Task(samples=samples, predict=predict, metrics={"accuracy": Accuracy()}, batch_size=8)
"""

EVALUATION = """
import disteval
from disteval.metrics import Accuracy


def evaluate(case):
    metrics = {"accuracy": Accuracy()}
    found = disteval.evaluate(
        lambda batch: case.predict(batch["x"]), case.dataset, metrics, batch_size=case.batch_size
    )
    return {"accuracy": found.metrics["accuracy"]["top1"], "count": found.size}
"""

TEST = """
import platform


def names(backend):
    return backend.all_gather_object(platform.node())


def test_hosts(world):
    assert world.run(names) == [["alpha", "beta"]] * 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("launched")
    (made / "my_task.py").write_text(TASK)
    (made / "my_eval.py").write_text(EVALUATION)
    (made / "test_ours.py").write_text(TEST)
    (made / "hosts").write_text("alpha slots=1\nbeta slots=1\n")
    (made / "hydra_hosts").write_text("alpha:1\nbeta:1\n")
    (made / "private").mkdir(mode=0o700)
    return made


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Hosts]:
    with Hosts(folder) as two:
        yield two


def check_report(path: Path) -> dict[str, Any]:
    """Check that each of the 101 samples was counted once; 27 of them have the right label."""
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["metrics"]["accuracy"] == {"top1": 27 / 101}
    assert report["coverage"] == "exact"
    assert report["size"] == 101
    return report


@needs("torch")
def test_torchrun_on_two_nodes_does_everything_over_a_shared_private_folder(
    hosts: Hosts, folder: Path
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--no-python"]
    command += ["--master-addr", "alpha", "--master-port", "29500", "--nproc-per-node", "1"]
    light = ["--backend", "suites.mutants.sockets:Sockets"]  # starts at once
    rules = ["--rules=1.1,1.2,1.3,3.1", "--examples=3", "--json=check.json"]
    audited = ["--case", "N=5,B=4,W=2", "--json=audit.json"]
    work = [
        [*DISTEVAL, "eval", "my_task:task", "--backend", "torch_cpu", "--json", "torch.json"],
        [*DISTEVAL, "check", light[1], *rules],
        [*DISTEVAL, "audit", "my_eval:evaluate", *light, *audited],
        [sys.executable, "-m", "pytest", *PLUGIN, *light, "test_ours.py"],
    ]
    script = folder / "all.sh"
    script.write_text("set -e\n" + "\n".join(map(shlex.join, work)))
    told = {"DISTEVAL_CONTROL_DIR": str(folder / "private")}
    told["PYTHONPATH"] = os.pathsep.join(sys.path)
    nodes = [
        hosts.on_host(node, [*command, "--node-rank", str(node), "sh", str(script)], told)
        for node in (0, 1)
    ]
    printed = [ended(node, SECONDS) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed
    assert check_report(folder / "torch.json")["world_size"] == 2
    assert "1 passed" in printed[0]
    tried = json.loads((folder / "check.json").read_text())["rules"]
    assert [(each["world_size"], each["outcome"]) for each in tried] == [(2, "passed")] * 4
    found = json.loads((folder / "audit.json").read_text())
    assert (found["verdict"], len(found["cases"])) == ("sound", 1)
    assert list((folder / "private").iterdir()) == []


def mpirun(hosts: Hosts, *work: str) -> str:
    """Run a command on both hosts with the mpirun of mpi4py's MPI, and return what it printed."""
    program = str(BESIDE / "mpirun")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    with hosts.remote_shell() as shell:
        if "Open MPI" in version.stdout:
            how = ["--prtemca", "plm_ssh_agent", str(shell), "--hostfile", "hosts"]
            how += ["-x", "PYTHONPATH"]
        else:
            how = ["-launcher", "ssh", "-launcher-exec", str(shell), "-hostfile", "hydra_hosts"]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        # UCX takes two hosts with one kernel for one, and would use memory that they don't share.
        cable = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
        command = [program, *how, "-np", "2", *work]
        started = hosts.on_host(0, command, allowed | paths | cable)
        printed = ended(started, SECONDS)
    assert started.returncode == 0, printed
    return printed


@needs("mpi4py")
def test_mpirun_with_a_hostfile_needs_nothing_else(hosts: Hosts, folder: Path) -> None:
    work = ["eval", "my_task:task", "--backend", "mpi4py", "--json", "mpi.json"]
    mpirun(hosts, *DISTEVAL, *work)
    assert check_report(folder / "mpi.json")["world_size"] == 2
