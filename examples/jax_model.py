"""Evaluate a model in JAX, whose function is compiled once because all batches have one shape.

python examples/jax_model.py, or disteval eval jax_model:task --backend jax --world-size 3
"""

import jax
from disteval import Task, get_dist_backend
from disteval.data import load_embedded
from disteval.metrics import Accuracy


def task() -> Task:
    """Return the task: a linear model that was not trained, over 10,000 pictures."""
    weights = jax.random.normal(jax.random.key(0), (3 * 32 * 32, 10))

    @jax.jit
    def predict(images: jax.Array) -> jax.Array:
        return images.reshape(len(images), -1) / 255 @ weights

    return Task(samples=load_embedded(), predict=predict, metrics={"accuracy": Accuracy()})


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
