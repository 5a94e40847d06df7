"""One metric over shards of one data set, in worlds of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from disteval.metrics import BaseMetric
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks, values

SIZES = (1, 2, 3, 5)


def everywhere(
    make: Callable[[], BaseMetric], *arrays: Any, sizes: tuple[int, ...] = SIZES, **named: Any
) -> list[Any]:
    """Return the results on all ranks of all worlds, with ids, in batches of other sizes.

    Each rank also adds sample 0, and some ranks may have no other.

    Args:
        make: Makes the metric.
        *arrays: What `add` takes, one entry for each sample.
        sizes: The world sizes.
        **named: More of that, by name.
    """
    found, size = [], len(arrays[0])
    for world in sizes:

        def rank(backend: ThreadsDist, world: int = world) -> Any:
            metric = make()
            metric.dist_backend = backend
            mine = np.arange(size)[::-1][backend.rank :: world]
            for batch in [*np.array_split(mine, 1 + world % 3), np.array([0])]:
                some = {name: array[batch] for name, array in named.items()}
                metric.add(*(array[batch] for array in arrays), **some, ids=batch)
            return metric.compute(size=size)

        found += values(run_ranks(world, rank))
    return found
