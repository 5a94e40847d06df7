"""Worlds of ranks: started or joined, run in lock step, and buried."""

from harness.worlds.attach import follow, lead, share_cores, why_not_in
from harness.worlds.crew import Crew
from harness.worlds.outer import OuterWorld, detect_outer_world
from harness.worlds.rank import beat
from harness.worlds.world import World, check_world_size, load_backend

__all__ = [
    "Crew",
    "OuterWorld",
    "World",
    "beat",
    "check_world_size",
    "detect_outer_world",
    "follow",
    "lead",
    "load_backend",
    "share_cores",
    "why_not_in",
]
