"""Ranks that one ``torchrun`` starts."""

from __future__ import annotations

import sys

from disteval.world.launchers.base import CommandLauncher


class TorchrunLauncher(CommandLauncher):
    """Starts all ranks with the ``torchrun`` of this Python, on this host."""

    name = "torchrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``torchrun`` command up to the command of a rank."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        return [*torchrun, f"--nproc-per-node={world_size}"]
