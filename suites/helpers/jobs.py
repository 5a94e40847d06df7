"""What tests know of jobs that somebody else has started, and of how their ranks find a leader."""

from disteval.launched import Job, launched_job
from disteval.world.bootstrap import Bootstrap, named_leader
from disteval.world.environment import OuterWorld, outside_environment

__all__ = [
    "Bootstrap",
    "Job",
    "OuterWorld",
    "launched_job",
    "named_leader",
    "outside_environment",
]
