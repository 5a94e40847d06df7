"""Worlds of ranks: started or joined, run in lock step, and buried."""

from disteval.worlds.attach import exit_now, follow, lead, release, share_cores, why_not_in
from disteval.worlds.crew import Crew
from disteval.worlds.launchers import Launcher, keep
from disteval.worlds.outer import OuterWorld, detect_outer_world
from disteval.worlds.rank import report_progress, send_note
from disteval.worlds.ray_launcher import RayLauncher
from disteval.worlds.world import World, check_world_size, load_backend
from disteval.worlds.worlds import Worlds

__all__ = [
    "Crew",
    "Launcher",
    "OuterWorld",
    "RayLauncher",
    "World",
    "Worlds",
    "check_world_size",
    "detect_outer_world",
    "exit_now",
    "follow",
    "keep",
    "lead",
    "load_backend",
    "release",
    "report_progress",
    "send_note",
    "share_cores",
    "why_not_in",
]
