"""What tests know of jobs that somebody else has started, and of how their ranks find a leader."""

from disteval.launched import Job, launched_job
from disteval.world import meeting
from disteval.world.environment import OuterWorld, outside_environment
from disteval.world.given_leader import given_leader
from disteval.world.meeting import GivenLeader

__all__ = [
    "GivenLeader",
    "Job",
    "OuterWorld",
    "given_leader",
    "launched_job",
    "meeting",
    "outside_environment",
]
