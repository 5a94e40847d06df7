"""Predictions in files: written by ranks while they are computed, and read in order."""

from disteval.data.predictions.gathered import GatheredPredictions
from disteval.data.predictions.lent import CommittedParts, LeaseWriter, locked_for_leases
from disteval.data.predictions.reader import PredictionReader, load_predictions
from disteval.data.predictions.settings import Predictions
from disteval.data.predictions.sink import Sink
from disteval.data.predictions.targets import Target, check_target, open_sink
from disteval.data.predictions.writer import PredictionWriter

__all__ = [
    "CommittedParts",
    "GatheredPredictions",
    "LeaseWriter",
    "PredictionReader",
    "PredictionWriter",
    "Predictions",
    "Sink",
    "Target",
    "check_target",
    "load_predictions",
    "locked_for_leases",
    "open_sink",
]
