"""Training and evaluation with runners and hooks, in one process or on many ranks."""

from disteval.estimator.estimator import Estimator
from disteval.estimator.runner import EpochBasedRunner, IterBasedRunner

__all__ = ["EpochBasedRunner", "Estimator", "IterBasedRunner"]
