"""Evaluate samples with several labels each, from a dict of arrays, whose batches are dicts.

The key ``labels`` of a batch holds the labels.

python examples/several_labels.py
"""

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import MultiLabel


def task() -> Task:
    """Return the task: scores of five labels for 307 samples."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (307, 5))
    scores = 0.3 * labels + 0.7 * random.random((307, 5))
    return Task(
        samples={"scores": scores, "labels": labels},
        predict=lambda batch: batch["scores"],
        metrics={"topics": MultiLabel(5)},
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
