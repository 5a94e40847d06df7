"""Metrics; one a file."""

from harness.metrics.accuracy import Accuracy
from harness.metrics.base import BaseMetric

__all__ = ["Accuracy", "BaseMetric"]
