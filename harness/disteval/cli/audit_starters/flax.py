"""An evaluation with JAX on each rank, as Flax models are used.

Audit it with disteval audit my_eval:evaluate --backend jax.
"""

import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils


def evaluate(case):
    own = list(range(case.rank, len(case.dataset), case.world_size))
    right = seen = 0
    for start in range(0, len(own), case.batch_size):
        batch = [case.dataset[index] for index in own[start : start + case.batch_size]]
        scores = case.predict(jnp.stack([sample["x"] for sample in batch]))
        labels = jnp.array([sample["label"] for sample in batch])
        right += int((scores.argmax(axis=1) == labels).sum())
        seen += len(batch)
    sums = multihost_utils.process_allgather(np.array([right, seen])).reshape(-1, 2).sum(axis=0)
    return {"accuracy": sums[0] / sums[1], "count": int(sums[1])}
