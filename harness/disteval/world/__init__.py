"""Worlds of ranks: they are started or joined, led in lock step, and ended."""

from disteval.host import exit_now
from disteval.world.attached import (
    START_SECONDS,
    detect_outer_world,
    follow,
    release,
    share_cores,
    why_not_in,
)
from disteval.world.launchers import Launcher, LocalLauncher
from disteval.world.postmortem import PostMortem, RankStatus
from disteval.world.rank import report_progress, send_note
from disteval.world.ray import RayLauncher
from disteval.world.run import Results
from disteval.world.world import World, check_world_size

__all__ = [
    "START_SECONDS",
    "Launcher",
    "LocalLauncher",
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
