"""Launchers: each starts the ranks of a world in its own way, and terminates them."""

from disteval.world.address import Hosts
from disteval.world.launchers.base import (
    Launcher,
    ProcessLauncher,
    get_launcher,
    register_launcher,
)
from disteval.world.launchers.commands import (
    CommandLauncher,
    HorovodrunLauncher,
    MpirunLauncher,
    TorchrunLauncher,
)
from disteval.world.launchers.local import LocalLauncher
from disteval.world.launchers.outer import OuterLauncher
from disteval.world.launchers.ray import RayLauncher
from disteval.world.launchers.threads import ThreadsLauncher

__all__ = [
    "CommandLauncher",
    "HorovodrunLauncher",
    "Hosts",
    "Launcher",
    "LocalLauncher",
    "MpirunLauncher",
    "OuterLauncher",
    "ProcessLauncher",
    "RayLauncher",
    "ThreadsLauncher",
    "TorchrunLauncher",
    "get_launcher",
    "register_launcher",
]

for _launcher in (
    LocalLauncher,
    ThreadsLauncher,
    MpirunLauncher,
    TorchrunLauncher,
    HorovodrunLauncher,
    RayLauncher,
):
    register_launcher(_launcher)
