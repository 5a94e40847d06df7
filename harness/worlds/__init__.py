"""Worlds of ranks: started or joined, run in lock step, and buried."""

from harness.worlds.attach import join_outer_world
from harness.worlds.outer import OuterWorld, detect_outer_world
from harness.worlds.rank import beat
from harness.worlds.world import World, check_world_size

__all__ = [
    "OuterWorld",
    "World",
    "beat",
    "check_world_size",
    "detect_outer_world",
    "join_outer_world",
]
