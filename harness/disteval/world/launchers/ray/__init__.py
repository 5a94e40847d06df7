"""Ranks that are actors on a Ray cluster."""

from disteval.world.launchers.ray.cluster import joined_ray
from disteval.world.launchers.ray.launcher import RayLauncher
from disteval.world.launchers.ray.room import cluster_cpus, share_of_cpu

__all__ = ["RayLauncher", "cluster_cpus", "joined_ray", "share_of_cpu"]
