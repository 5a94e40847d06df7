"""Launchers: each starts the ranks of a world in its own way, and terminates them."""

from disteval.worlds.launchers.base import (
    Hosts,
    Launcher,
    ProcessLauncher,
    get_launcher,
    register_launcher,
)
from disteval.worlds.launchers.horovodrun import HorovodrunLauncher
from disteval.worlds.launchers.local import LocalLauncher
from disteval.worlds.launchers.mpirun import MpirunLauncher
from disteval.worlds.launchers.outer import OuterLauncher
from disteval.worlds.launchers.ray import RayLauncher
from disteval.worlds.launchers.threads import ThreadsLauncher
from disteval.worlds.launchers.torchrun import TorchrunLauncher

__all__ = [
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
