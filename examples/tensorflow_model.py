"""Evaluate a model of Keras that draws random numbers: the same for a sample in every batch.

A stateless function of TensorFlow takes a seed of two numbers, of which one is the sample's. Layers
such as ``Dropout`` draw from generators that all samples share.

python examples/tensorflow_model.py, or, on three ranks,
disteval eval tensorflow_model:task --backend tf_collective --world-size 3
"""

import tensorflow as tf
from disteval import Task, get_dist_backend
from disteval.data import load_embedded
from disteval.metrics import Accuracy


def task() -> Task:
    """Return the task: a linear model that was not trained, with dropout, over 1,000 pictures."""
    same = tf.keras.initializers.GlorotUniform(seed=0)  # every rank needs the same weights
    dense = tf.keras.layers.Dense(10, kernel_initializer=same)
    model = tf.keras.Sequential([tf.keras.Input((3 * 32 * 32,)), dense])

    def kept(number: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform((3 * 32 * 32,), seed=[0, number]) < 0.9

    @tf.function
    def predict(images: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        mask = tf.map_fn(kept, ids, fn_output_signature=tf.bool)
        rows = tf.reshape(tf.cast(images, tf.float32) / 255, (len(images), -1))
        return model(tf.where(mask, rows, 0.0))

    metrics = {"accuracy": Accuracy()}
    return Task(samples=load_embedded(), predict=predict, metrics=metrics, limit=1000)


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
