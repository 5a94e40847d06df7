"""Training and evaluation with runners and hooks, in one process or on many ranks."""

from disteval.estimator.checkpoint import latest_checkpoint, read_checkpoint
from disteval.estimator.distributed import distribute
from disteval.estimator.estimator import Estimator
from disteval.estimator.loaders import with_sampler
from disteval.estimator.runner import EpochBasedRunner, IterBasedRunner

__all__ = [
    "EpochBasedRunner",
    "Estimator",
    "IterBasedRunner",
    "distribute",
    "latest_checkpoint",
    "read_checkpoint",
    "with_sampler",
]
