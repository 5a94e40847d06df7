"""Metrics; one a file."""

from disteval.metrics.accuracy import Accuracy
from disteval.metrics.base import BaseMetric, SummableMetric
from disteval.metrics.bootstrap import Bootstrap
from disteval.metrics.calibration import CalibrationError
from disteval.metrics.confusion import ConfusionMatrix
from disteval.metrics.exact_match import ExactMatch
from disteval.metrics.group import MetricGroup
from disteval.metrics.grouped import Grouped
from disteval.metrics.mean import CrossEntropy, Mean
from disteval.metrics.multilabel import MultiLabel
from disteval.metrics.perplexity import Perplexity
from disteval.metrics.ranking import AUROC, AveragePrecision
from disteval.metrics.regression import Regression
from disteval.metrics.retrieval import Retrieval
from disteval.metrics.segmentation import Segmentation
from disteval.metrics.state import SampleRows
from disteval.metrics.torchmetrics_adapter import from_torchmetrics
from disteval.metrics.weighted import Weighted

__all__ = [
    "AUROC", "Accuracy", "AveragePrecision", "BaseMetric", "Bootstrap", "CalibrationError",
    "ConfusionMatrix", "CrossEntropy", "ExactMatch", "Grouped", "Mean", "MetricGroup", "MultiLabel",
    "Perplexity", "Regression", "Retrieval", "SampleRows", "Segmentation", "SummableMetric",
    "Weighted", "from_torchmetrics",
]  # fmt: skip
