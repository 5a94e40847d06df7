"""Predictions in files: written by ranks while they are computed, and read in order."""

from disteval.data.predictions.folder import (
    FormatName,
    Predictions,
    complete,
    locked,
    refuse_finished,
    remove_strays,
)
from disteval.data.predictions.parts import PartFile
from disteval.data.predictions.reader import PredictionReader, load_predictions
from disteval.data.predictions.writer import PartWriter

__all__ = [
    "FormatName",
    "PartFile",
    "PartWriter",
    "PredictionReader",
    "Predictions",
    "complete",
    "load_predictions",
    "locked",
    "refuse_finished",
    "remove_strays",
]
