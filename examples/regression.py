"""Evaluate a regression over arrays: a tuple of arrays is a data set, with a row of each a sample.

The model gets rows of the first array; the metric gets its predictions and rows of the second one.

python examples/regression.py
"""

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import Regression


def task() -> Task:
    """Return the task: a linear model of 501 noisy numbers."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(501, 4))
    weights = np.array([1.0, -2.0, 0.5, 3.0])
    labels = inputs @ weights + random.normal(size=501)
    return Task(
        samples=(inputs, labels),
        predict=lambda rows: (rows * weights).sum(axis=1),
        metrics={"price": Regression()},
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
