"""Ranks that are actors on a Ray cluster."""

from disteval.world.ray.cluster import cluster_cpus, joined_ray, share_of_cpu
from disteval.world.ray.launcher import RayLauncher

__all__ = ["RayLauncher", "cluster_cpus", "joined_ray", "share_of_cpu"]
