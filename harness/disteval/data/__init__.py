"""Data sets: in memory, CIFAR-10 from files, the embedded one, and streams of shards."""

from disteval.data.base import ArrayDataset
from disteval.data.cifar10 import download_cifar10, load_cifar10
from disteval.data.embedded import load_embedded
from disteval.data.length_of import ByLength
from disteval.data.predictions import PredictionReader, Predictions, load_predictions
from disteval.data.shards import ShardedStream

__all__ = [
    "ArrayDataset",
    "ByLength",
    "PredictionReader",
    "Predictions",
    "ShardedStream",
    "download_cifar10",
    "load_cifar10",
    "load_embedded",
    "load_predictions",
]
