"""Predictions in files: written by ranks while they are computed, and read in order."""

from disteval.data.predictions.gathered import GatheredPredictions
from disteval.data.predictions.reader import PredictionReader, load_predictions
from disteval.data.predictions.settings import Predictions, predictions_of
from disteval.data.predictions.writer import PredictionWriter, Sink

__all__ = [
    "GatheredPredictions",
    "PredictionReader",
    "PredictionWriter",
    "Predictions",
    "Sink",
    "load_predictions",
    "predictions_of",
]
