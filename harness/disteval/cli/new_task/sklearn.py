"""A task of scikit-learn: disteval eval my_task:task --world-size 3 --backend threads."""

import numpy as np
from disteval import Task
from disteval.metrics import Accuracy, CalibrationError
from sklearn.linear_model import LogisticRegression


def made_data(seed, size):
    """Make points and labels. Load your data here; it must be the same on every rank."""
    points = np.random.default_rng(seed).normal(size=(size, 3))
    return points, points.argmax(axis=1)


def task():
    """Return what is evaluated; every rank calls this."""
    # Put your model here. One that takes long to fit is best saved once, and loaded here.
    model = LogisticRegression().fit(*made_data(0, 500))
    return Task(
        samples=made_data(1, 1000),
        predict=model.predict_proba,
        metrics={"accuracy": Accuracy(topk=(1, 2)), "calibration": CalibrationError()},
        batch_size=64,
    )
