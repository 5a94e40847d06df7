"""Ranks that are actors on a Ray cluster."""

from disteval.worlds.launchers.ray.cluster import joined_ray
from disteval.worlds.launchers.ray.launcher import RayLauncher
from disteval.worlds.launchers.ray.room import cluster_cpus, share_of_cpu

__all__ = ["RayLauncher", "cluster_cpus", "joined_ray", "share_of_cpu"]
