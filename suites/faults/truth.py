"""What a right run gives, found without the code under test where that can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from suites.helpers.pictures import write_small_cifar10


def make_data(folder: Path) -> None:
    """Write the small CIFAR-10 that runs evaluate and train on."""
    folder.mkdir()
    write_small_cifar10(folder, test=301)  # so many that a fault may come while they are evaluated


def count_right(folder: Path) -> dict[str, Any]:
    """Count the right predictions in one process, with NumPy alone; nothing without torch."""
    try:
        from disteval.models.resnet18_torch import make_predict
    except ImportError:
        return {}
    from disteval.data import load_cifar10
    from disteval.models import default_weights

    dataset = load_cifar10(folder)
    scores = np.asarray(make_predict(default_weights())(dataset.images))
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = order == np.asarray(dataset.labels)[:, None]
    return {
        "top1": int(hits[:, :1].any(1).sum()),
        "top3": int(hits[:, :3].any(1).sum()),
        "size": len(dataset),
    }
