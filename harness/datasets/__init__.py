"""Data sets in memory: CIFAR-10 from files, and the one that ships."""

from harness.datasets.base import ArrayDataset
from harness.datasets.cifar10 import download_cifar10, load_cifar10
from harness.datasets.embedded import load_embedded

__all__ = ["ArrayDataset", "download_cifar10", "load_cifar10", "load_embedded"]
