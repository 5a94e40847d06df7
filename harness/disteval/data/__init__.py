"""Data sets in memory: CIFAR-10 from files, and the embedded data set."""

from disteval.data.base import ArrayDataset
from disteval.data.cifar10 import download_cifar10, load_cifar10
from disteval.data.embedded import load_embedded

__all__ = ["ArrayDataset", "download_cifar10", "load_cifar10", "load_embedded"]
