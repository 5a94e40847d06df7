"""Mistakes that have a name, by the weights that they give to samples.

One kind of mistake decides what samples weigh beside each other, as a mean of means does. Another
multiplies all weights by one factor, as a sum over ranks does that should be a mean. A function may
make one of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from disteval.audit.answers import Fetched
from disteval.audit.case import Settings
from disteval.audit.judge import show

TOLERANCE = 1e-3
"""Relative; a weight that is measured is that exact."""

_ROUNDS = 5  # in a case of so many full batches on each rank no two factors are the same

Weights = npt.NDArray[np.float64]

Groups = Sequence[tuple[list[int], float]]
"""Samples, and the weight that they have together."""

Again = Callable[[Settings], tuple[float, Sequence[Fetched]]]
"""Calls the function in another case.

It returns the result, divided by the right one, and the fetches; NaN where the call fails.
"""


def ratio(measured: Weights, expected: Weights, tolerance: float) -> float:
    """Return the factor between weights; NaN if there is no common one."""
    factor = float(measured.sum() / expected.sum())
    error = tolerance * expected.max()
    alike = factor > 0 and np.allclose(measured / factor, expected, tolerance, error)
    return factor if alike else np.nan


def shape_of(
    measured: Weights,
    fair: Weights,
    repeated: Weights,
    settings: Settings,
    fetched: Sequence[Fetched],
    again: Again,
    tolerance: float = TOLERANCE,
) -> str:
    """Return in words which well-known mistakes give these weights; nothing if none does.

    Args:
        measured: The weight of each sample.
        fair: The weight that each should have.
        repeated: The weight that each has if it counts as often as it was fetched.
        settings: The case.
        fetched: The fetches of each rank, in order; nothing where they were not noted.
        again: Calls the function where several mistakes give the same weights in this case.
        tolerance: The relative error that weights may have.
    """
    twice = {"it was dealt out more than once and each time counted": repeated}
    found = _fitting(twice, measured, tolerance)
    if not found and any(fetched):
        means = _means_of_means(settings, fetched)
        shares = {what: _weights(fair, groups) for what, groups in means}
        found = _fitting(shares, measured, tolerance)
    what, factor = ", or ".join(found), next(iter(found.values()), np.nan)
    if np.isclose(factor, 1.0, tolerance, 0.0):
        return what
    if (every := ratio(measured, fair, tolerance)) > 0:
        what, factor = "", every
    names = ", or ".join(_factors_of(factor, tolerance, settings, fetched, again))
    if every > 0 and not names:
        return f"every sample counts {show(factor)} times, so the division is wrong"
    return f"{what}; and {names}" if what and names else names


def _fitting(
    shares: Mapping[str, Weights], measured: Weights, tolerance: float
) -> dict[str, float]:
    """Return those shares that samples have beside each other, with the factor of all weights."""
    found = {what: ratio(measured, each, tolerance) for what, each in shares.items()}
    return {what: factor for what, factor in found.items() if factor > 0}


def share_of(counted: Set[int], settings: Settings, fetched: Sequence[Fetched]) -> str:
    """Return in words which rank's samples, or which batches, are those that count.

    Args:
        counted: The samples that count.
        settings: The case.
        fetched: As of `shape_of`.

    Returns:
        Nothing if they are those of no rank alone, and not those of the last batches.
    """
    ranks = _batches(settings, fetched)
    found = [
        f"the samples of rank {rank} alone count"
        for rank, batches in enumerate(ranks)
        if settings.world_size > 1 and batches and counted == {*chain(*batches)}
    ]
    if counted and counted == {s for batches in ranks if batches for s in batches[-1]}:
        found.append("the last batch of each rank alone counts")
    return ", or ".join(found)


def _factors_of(
    factor: float, tolerance: float, settings: Settings, fetched: Sequence[Fetched], again: Again
) -> list[str]:
    """Return in words what may multiply every weight by a factor.

    Where that is one of several mistakes, a larger case shows which: its batches are all full.
    """
    known = _factors(settings, fetched)
    fits = [what for what, each in known if np.isclose(factor, each, tolerance, 0.0)]
    if len({*fits}) > 1:
        larger = replace(settings, size=_ROUNDS * settings.world_size * settings.batch_size)
        factor, fetched = again(larger)
        both = zip(known, _factors(larger, fetched), strict=True)
        still = [what for (what, _), (_, each) in both if np.isclose(factor, each, tolerance, 0.0)]
        fits = fits if np.isnan(factor) else [what for what in fits if what in still]
    return [*dict.fromkeys(fits)]


def _factors(settings: Settings, fetched: Sequence[Fetched]) -> list[tuple[str, float]]:
    """Return mistakes that multiply the weight of every sample, with the factor in this case."""
    ranks, size, batch = settings.world_size, settings.size, settings.batch_size
    found = [
        ("it is multiplied by the number of ranks, as a mean that is summed over them", ranks),
        ("it is divided by the number of ranks, as a sum that is averaged over them", 1 / ranks),
        ("it is multiplied by the number of samples, as a sum in place of a mean", size),
        ("it is divided by the number of samples, as a mean in place of a sum", 1 / size),
    ]
    dealt = max(sum(map(len, fetched)), size)
    for filled in (dealt, *(-(-size // each) * each for each in (ranks, batch, ranks * batch))):
        found += [
            (f"it is divided by {filled}, the number of samples with padding", size / filled),
            (
                f"it is multiplied by {filled} and divided by {size}, so padding is in the sum and "
                f"not in the number of samples",
                filled / size,
            ),
        ]
    empty = sum(not each for each in fetched)
    what = f"it is divided by the number of ranks, of which {empty} had no sample"
    return [*found, (what, 1 - empty / ranks)]


def _means_of_means(settings: Settings, fetched: Sequence[Fetched]) -> Iterator[tuple[str, Groups]]:
    """Yield means of means, with the samples that each of these is taken of, and its weight."""
    ranks = [batches for batches in _batches(settings, fetched) if batches]
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
    """Return the batches of each rank, as a loader makes them of what it fetches."""
    size, parts = settings.batch_size, [[index for index, _ in each] for each in fetched]
    return [[part[at : at + size] for at in range(0, len(part), size)] for part in parts]


def _weights(fair: Weights, groups: Groups) -> Weights:
    """Return the weight of each sample if groups have these, in the parts that are fair in each."""
    found: Weights = np.zeros(len(fair))
    for samples, weight in groups:
        share = weight * fair.sum() / fair[samples].sum()
        np.add.at(found, samples, share * fair[samples])
    return found
