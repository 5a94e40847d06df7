"""Metrics; one a file."""

from harness.metrics.accuracy import Accuracy
from harness.metrics.base import BaseMetric
from harness.metrics.group import MetricGroup
from harness.metrics.summable import SummableMetric

__all__ = ["Accuracy", "BaseMetric", "MetricGroup", "SummableMetric"]
