"""Ranks that one ``horovodrun`` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from disteval.world.launchers.base import CommandLauncher


class HorovodrunLauncher(CommandLauncher):
    """Starts all ranks with the ``horovodrun`` of this Python, over Gloo."""

    name = "horovodrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``horovodrun`` command up to the command of a rank."""
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        return [horovodrun, "-np", str(world_size), "--gloo"]
