"""What the evaluation loops in plain NumPy share, and the table of those that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from disteval import get_dist_backend
from disteval.audit import Case
from disteval.world import World

Loop = Callable[[Case], Any]
Samples = list[dict[str, Any]]

LIBRARIES = {
    "torch_loops": "torch_cpu",
    "mpi_loops": "mpi4py",
    "jax_loops": "jax",
    "keras_loops": "tf_collective",
}
"""The backend of each module of loops."""

WRONG: dict[str, tuple[Loop, str, str]] = {}
"""Each loop by its name, with the kind and the case of its first finding."""


def wrong(kind: str, case: str) -> Callable[[Loop], Loop]:
    """Register a loop that the audit must convict of a kind, in that case."""

    def register(loop: Loop) -> Loop:
        WRONG[loop.__name__] = (loop, kind, case)
        return loop

    return register


def merged(merge: Callable[[Case, list[Path]], Any]) -> Callable[[Loop], Loop]:
    """Make a loop a job that writes a part; the merge reads the parts of all jobs."""

    def register(job: Loop) -> Loop:
        job.merge = merge  # type: ignore[attr-defined]
        return job

    return register


def write_part(case: Case, name: str, mode: str = "w") -> Path:
    """Write a line for each sample of the job, with its id and whether its prediction is right."""
    own = [case.dataset[i] for i in strided(case)]
    path = case.folder / name
    with path.open(mode) as file:
        for sample, right in zip(own, rights(case, own), strict=True):
            file.write(f"{sample['id']} {right}\n")
    return path


class JoinedOnce(World):
    """A world whose ranks stay in their group, so that several audits can lead it in turn.

    Such an audit does not start other ranks to find out whether a loop keeps state.
    """

    _in_group = False

    def join(self, *backend: Any) -> None:
        """Join the group, unless the ranks are in it."""
        if not self._in_group:
            super().join(*backend)
            self._in_group = True

    def leave(self) -> None:
        """Stay in the group; the ranks leave it as they end."""


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank."""
    return get_dist_backend().all_gather_object(value)


def strided(case: Case) -> list[int]:
    """Return the samples of this rank: every W-th one."""
    return list(range(case.rank, len(case.dataset), case.world_size))


def padded(case: Case) -> list[int]:
    """Return the samples of this rank as torch's DistributedSampler deals them."""
    size, ranks = len(case.dataset), case.world_size
    return [at % size for at in range(case.rank, -(-size // ranks) * ranks, ranks)]


def batches(case: Case, indices: Iterable[int]) -> Iterator[Samples]:
    """Return batches of samples."""
    indices = list(indices)
    for at in range(0, len(indices), case.batch_size):
        yield [case.dataset[i] for i in indices[at : at + case.batch_size]]


def rights(case: Case, samples: Samples) -> list[int]:
    """Return 1 for each sample whose prediction is right, else 0."""
    if not samples:
        return []
    scores = case.predict(np.stack([s["x"] for s in samples]))
    return [int(p == s["label"]) for p, s in zip(scores.argmax(axis=1), samples, strict=True)]


def predicted(case: Case, samples: Samples) -> list[int]:
    """Return the prediction for each sample."""
    scores = case.predict(np.stack([s["x"] for s in samples]))
    return [int(each) for each in scores.argmax(axis=1)]


def counted(case: Case, indices: Iterable[int]) -> tuple[int, int]:
    """Return how many of this rank's samples are right, and how many there are."""
    found = [right for batch in batches(case, indices) for right in rights(case, batch)]
    return sum(found), len(found)


def divided(pairs: Iterable[tuple[float, float]]) -> float:
    """Divide the sum of the first numbers by the sum of the others."""
    right, seen = np.sum(list(pairs), axis=0)
    return float(right / seen) if seen else float("nan")


def batches_of_one(case: Case) -> list[Samples]:
    """Return this rank's samples, one by one."""
    return [[case.dataset[i]] for i in strided(case)]
