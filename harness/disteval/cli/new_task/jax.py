"""A task of JAX: disteval eval my_task:task --world-size 3 --backend jax."""

import jax
import numpy as np
from disteval import Task
from disteval.metrics import Accuracy


def made_data():
    """Make points and labels. Load your data here; it must be the same on every rank."""
    points = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    return points, points.argmax(axis=1)


def task():
    """Return what is evaluated; every rank calls this."""
    weights = np.eye(3, dtype=np.float32)  # load the weights of your model here

    @jax.jit
    def predict(points):  # every batch has the same shape, so this is compiled once
        return points @ weights

    metrics = {"accuracy": Accuracy(topk=(1, 2))}
    return Task(samples=made_data(), predict=predict, metrics=metrics, batch_size=64)
