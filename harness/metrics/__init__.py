"""Metrics; one a file."""

from harness.metrics.accuracy import Accuracy
from harness.metrics.base import BaseMetric
from harness.metrics.confusion import ConfusionMatrix
from harness.metrics.group import MetricGroup
from harness.metrics.mean import CrossEntropy, Mean
from harness.metrics.ranking import AUROC, AveragePrecision
from harness.metrics.summable import SummableMetric
from harness.metrics.torchmetrics_adapter import from_torchmetrics

__all__ = [
    "AUROC",
    "Accuracy",
    "AveragePrecision",
    "BaseMetric",
    "ConfusionMatrix",
    "CrossEntropy",
    "Mean",
    "MetricGroup",
    "SummableMetric",
    "from_torchmetrics",
]
