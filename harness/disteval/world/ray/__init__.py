"""Ranks that are actors on a Ray cluster."""

from disteval.world.ray.cluster import joined_ray
from disteval.world.ray.launcher import RayLauncher
from disteval.world.ray.room import cluster_cpus, share_of_cpu

__all__ = ["RayLauncher", "cluster_cpus", "joined_ray", "share_of_cpu"]
