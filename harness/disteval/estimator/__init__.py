"""Training and evaluation with runners and hooks, on one process or on many workers."""

from disteval.estimator.epoch_based import EpochBasedRunner
from disteval.estimator.estimator import Estimator
from disteval.estimator.iter_based import IterBasedRunner

__all__ = ["EpochBasedRunner", "Estimator", "IterBasedRunner"]
