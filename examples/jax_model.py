"""Evaluate a model in JAX that draws random numbers: the same for a sample in every batch.

``jax.random.fold_in`` takes the number of the sample. ``jax.jit`` compiles once, because all
batches have one shape.

python examples/jax_model.py, or disteval eval jax_model:task --backend jax --world-size 3
"""

import jax
from disteval import Task, get_dist_backend
from disteval.data import load_embedded
from disteval.metrics import Accuracy


def task() -> Task:
    """Return the task: a linear model that was not trained, with dropout, over 1,000 pictures."""
    weights = jax.random.normal(jax.random.key(0), (3 * 32 * 32, 10))

    def scores(number: jax.Array, image: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(1), number)
        kept = jax.random.bernoulli(key, 0.9, (3 * 32 * 32,))
        return (image.ravel() / 255 * kept) @ weights

    @jax.jit
    def predict(images: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.vmap(scores)(ids, images)

    metrics = {"accuracy": Accuracy()}
    return Task(samples=load_embedded(), predict=predict, metrics=metrics, limit=1000)


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
