"""Mistakes that have a name, by the weights that they give to samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import chain

import numpy as np
import numpy.typing as npt

from disteval.audit.answers import Fetched
from disteval.audit.case import Settings
from disteval.audit.judge import show

TOLERANCE = 1e-3
"""Relative; a weight that is measured is that exact."""

Weights = npt.NDArray[np.float64]

Groups = Sequence[tuple[Sequence[int], float]]
"""Samples, and the weight that they have together."""


def shape_of(
    measured: Weights, fair: Weights, settings: Settings, fetched: Sequence[Fetched]
) -> str:
    """Return in words which well-known mistakes give these weights; nothing if none does.

    Args:
        measured: The weight of each sample.
        fair: The weight that each should have.
        settings: The case.
        fetched: The samples that each rank fetched, in order; nothing where that was not noted.
    """
    times = measured / fair
    found = [
        what for what, factor in _factors(settings) if np.allclose(times, factor, rtol=TOLERANCE)
    ]
    if not found and np.allclose(times, times[0], rtol=TOLERANCE):
        return f"every sample counts {show(float(times[0]))} times, so the division is wrong"
    if not found:
        found = [
            what
            for what, groups in _means_of_means(settings, fetched)
            if np.allclose(measured, _weights(fair, groups), rtol=TOLERANCE)
        ]
    return ", or ".join(found)


def share_of(counted: Set[int], settings: Settings, fetched: Sequence[Fetched]) -> str:
    """Return in words which rank's samples, or which batches, are those that count.

    Args:
        counted: The samples that count.
        settings: The case.
        fetched: As of `shape_of`.

    Returns:
        Nothing if they are those of no rank alone, and not those of the last batches.
    """
    found = [
        f"the samples of rank {rank} alone count"
        for rank, part in enumerate(fetched)
        if settings.world_size > 1 and part and counted == part.keys()
    ]
    if counted and counted == {s for batches in _batches(settings, fetched) for s in batches[-1]}:
        found.append("the last batch of each rank alone counts")
    return ", or ".join(found)


def _factors(settings: Settings) -> Iterator[tuple[str, float]]:
    """Yield mistakes that multiply the weight of every sample, with the factor."""
    ranks, size, batch = settings.world_size, settings.size, settings.batch_size
    if ranks > 1:
        yield "it is multiplied by the number of ranks, as a mean that is summed over them", ranks
        yield "it is divided by the number of ranks, as a sum that is averaged over them", 1 / ranks
    if size > 1:
        yield "it is multiplied by the number of samples, as a sum in place of a mean", size
        yield "it is divided by the number of samples, as a mean in place of a sum", 1 / size
    for filled in {-(-size // each) * each for each in (ranks, batch, ranks * batch)} - {size}:
        yield f"it is divided by {filled}, the number of samples with padding", size / filled


def _means_of_means(settings: Settings, fetched: Sequence[Fetched]) -> Iterator[tuple[str, Groups]]:
    """Yield means of means, with the samples that each of these is taken of, and its weight."""
    ranks = _batches(settings, fetched)
    count = sum(map(len, ranks))
    yield (
        "it is the mean of the means of batches",
        [(batch, 1 / count) for batches in ranks for batch in batches],
    )
    yield (
        "it is the mean of the means of ranks",
        [([*chain(*batches)], 1 / len(ranks)) for batches in ranks],
    )
    yield (
        "it is the mean over ranks of their means of batches",
        [(batch, 1 / len(ranks) / len(batches)) for batches in ranks for batch in batches],
    )


def _batches(settings: Settings, fetched: Sequence[Fetched]) -> list[list[list[int]]]:
    """Return the batches of each rank that has any, as a loader makes them of what it fetches."""
    size, parts = settings.batch_size, [[*each] for each in fetched if each]
    return [[part[at : at + size] for at in range(0, len(part), size)] for part in parts]


def _weights(fair: Weights, groups: Groups) -> Weights:
    """Return the weight of each sample if groups have these, in the parts that are fair in each."""
    found = np.zeros(len(fair))
    for samples, weight in groups:
        found[[*samples]] += weight * fair[[*samples]] / fair[[*samples]].sum()
    return found
