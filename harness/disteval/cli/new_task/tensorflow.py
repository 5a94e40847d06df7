"""A task of TensorFlow: disteval eval my_task:task --world-size 3 --backend tf_collective."""

import numpy as np
import tensorflow as tf
from disteval import Task
from disteval.metrics import Accuracy


def made_data():
    """Make points and labels. Load your data here; it must be the same on every rank."""
    points = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    return points, points.argmax(axis=1)


def task():
    """Return what is evaluated; every rank calls this."""
    # Put your model here, with its weights.
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, kernel_initializer="identity")])

    @tf.function
    def predict(points):  # every batch has the same shape, so this is traced once
        return model(points, training=False)

    metrics = {"accuracy": Accuracy(topk=(1, 2))}
    return Task(samples=made_data(), predict=predict, metrics=metrics, batch_size=64)
