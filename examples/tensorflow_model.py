"""Evaluate a model of Keras in TensorFlow.

python examples/tensorflow_model.py, or, on three ranks,
disteval eval tensorflow_model:task --backend tf_collective --world-size 3
"""

import tensorflow as tf
from disteval import Task, get_dist_backend
from disteval.data import load_embedded
from disteval.metrics import Accuracy


def task() -> Task:
    """Return the task: a linear model that was not trained, over 10,000 pictures."""
    same = tf.keras.initializers.GlorotUniform(seed=0)  # every rank needs the same weights
    dense = tf.keras.layers.Dense(10, kernel_initializer=same)
    model = tf.keras.Sequential([tf.keras.Input((3, 32, 32)), tf.keras.layers.Flatten(), dense])

    @tf.function
    def predict(images: tf.Tensor) -> tf.Tensor:
        return model(tf.cast(images, tf.float32) / 255)

    return Task(samples=load_embedded(), predict=predict, metrics={"accuracy": Accuracy()})


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
