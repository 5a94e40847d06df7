"""What tests know of jobs that somebody else has started, and of how their ranks find a leader."""

from disteval.launched import Job, launched_job
from disteval.worlds import meeting
from disteval.worlds.environment import OuterWorld, outside_environment
from disteval.worlds.given_leader import given_leader
from disteval.worlds.meeting import GivenLeader

__all__ = [
    "GivenLeader",
    "Job",
    "OuterWorld",
    "given_leader",
    "launched_job",
    "meeting",
    "outside_environment",
]
