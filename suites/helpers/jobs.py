"""What tests know of jobs that somebody else has started, and of how their ranks find a leader."""

from disteval.launched import Job, launched_job, outside_environment
from disteval.world.attached import Bootstrap, named_leader

__all__ = [
    "Bootstrap",
    "Job",
    "launched_job",
    "named_leader",
    "outside_environment",
]
