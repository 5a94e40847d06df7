"""Training and evaluation with runners and hooks, on one process or on many workers."""

from harness.estimator.epoch_based import EpochBasedRunner
from harness.estimator.estimator import Estimator
from harness.estimator.iter_based import IterBasedRunner

__all__ = ["EpochBasedRunner", "Estimator", "IterBasedRunner"]
