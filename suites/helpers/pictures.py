"""A small CIFAR-10 on disk, for tests that evaluate or train as a user does, but in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import disteval.data
import numpy as np
from disteval.data import ArrayDataset, load_embedded

SIZES = {"train": 192, "test": 121}
"""The number of pictures in each split; no world size from 2 to 6 divides the second."""

RIGHT = {"top1": 103, "top3": 116}
"""How many of the second the weights that ship get right, in every framework."""

_FILES = {"train": "data_batch_1.bin", "test": "test_batch.bin"}


def embed_few() -> None:
    """Have this process find the first pictures alone in each split of the embedded set."""

    def load_few(split: str = "test") -> ArrayDataset:
        every, size = load_embedded(split), SIZES[split]
        return replace(every, images=every.images[:size], labels=every.labels[:size])

    disteval.data.load_embedded = load_few


def write_small_cifar10(folder: Path, **sizes: int) -> None:
    """Write the first embedded pictures of both splits in CIFAR-10's binary layout."""
    numbers = SIZES | sizes
    for split, name in _FILES.items():
        found = load_embedded("train" if split == "train" else "test")
        pictures = found.images[: numbers[split]].reshape(numbers[split], -1)
        labels = found.labels[: numbers[split], None].astype(np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, pictures], axis=1).tobytes())
