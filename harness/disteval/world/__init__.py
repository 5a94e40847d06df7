"""Worlds of ranks: they are started or joined, led in lock step, and ended."""

from disteval.host import exit_now
from disteval.world.attach import follow, release, share_cores, why_not_in
from disteval.world.environment import OuterWorld, detect_outer_world
from disteval.world.launchers import Launcher, LocalLauncher, RayLauncher
from disteval.world.postmortem import PostMortem, RankStatus
from disteval.world.rank import report_progress, send_note
from disteval.world.run import Results
from disteval.world.world import START_SECONDS, World, check_world_size

__all__ = [
    "START_SECONDS",
    "Launcher",
    "LocalLauncher",
    "OuterWorld",
    "PostMortem",
    "RankStatus",
    "RayLauncher",
    "Results",
    "World",
    "check_world_size",
    "detect_outer_world",
    "exit_now",
    "follow",
    "release",
    "report_progress",
    "send_note",
    "share_cores",
    "why_not_in",
]
