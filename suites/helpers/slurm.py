"""SLURM on the two hosts of a test: its controller on ``alpha``, and a daemon on each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disteval.conformance.plugin import required

from suites.helpers.hosts import NAMES, Hosts
from suites.helpers.processes import wait_for

# Root of the hosts is the only user, who need not prove it. Every file is on its host.
_SLURM = """
ClusterName=two
SlurmctldHost=alpha
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
StateSaveLocation=/tmp/slurm
SlurmdSpoolDir=/tmp/slurm
SlurmctldPidFile=/tmp/slurm/slurmctld.pid
SlurmdPidFile=/tmp/slurm/slurmd.pid
ReturnToService=2
NodeName=alpha,beta CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# Without it slurmd looks for a hierarchy of cgroups, which hosts of namespaces lack.
_CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
_SECONDS = 60


@contextmanager
def slurm(hosts: Hosts, folder: Path) -> Iterator[dict[str, str]]:
    """Run SLURM while the block runs, and provide the variables with which its commands find it.

    Skips the test where SLURM is not installed; fails it if ``DISTEVAL_REQUIRE`` names slurm.
    """
    skip_without_slurm()
    (folder / "slurm.conf").write_text(_SLURM)
    (folder / "cgroup.conf").write_text(_CGROUP)
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    make = "mkdir -p /tmp/slurm && exec"
    for host, daemon in [(0, "slurmctld"), (0, "slurmd"), (1, "slurmd")]:
        # It ends with its host.
        hosts.on_host(
            host, ["sh", "-c", f"{make} {daemon} -D > /tmp/slurm/{daemon}.log 2>&1"], variables
        )

    def nodes_are_idle() -> bool:
        asked = hosts.on_host(0, ["sinfo", "--noheader", "--Node", "--format=%T"], variables)
        return asked.communicate(timeout=_SECONDS)[0].split() == ["idle"] * len(NAMES)

    assert wait_for(nodes_are_idle, _SECONDS)
    yield variables


def skip_without_slurm() -> None:
    """Skip the test where SLURM can't run; fail it if ``DISTEVAL_REQUIRE`` names slurm."""
    programs = ("slurmctld", "slurmd", "srun")
    if missing := [name for name in programs if shutil.which(name) is None]:
        skip(f"there is no {', '.join(missing)}, of Debian's package slurm-wlm")
    if os.geteuid():
        skip("SLURM's daemons set their groups, which Linux lets root alone do")


def skip(reason: str) -> None:
    """Skip the test; fail it if ``DISTEVAL_REQUIRE`` names slurm."""
    if "slurm" in required():
        pytest.fail(f"DISTEVAL_REQUIRE names slurm, but {reason}")
    pytest.skip(f"not run: {reason}")
