"""What the weights of samples say about a wrong mean or sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from disteval.audit.findings import Kind
from disteval.audit.judge import Problem, show

_TOLERANCE = 1e-3

Weights = npt.NDArray[np.float64]


def explain(
    problem: Problem, measured: Weights, fair: Weights, fetched: Sequence[Mapping[int, int]]
) -> Problem:
    """Name the sample whose weight is the most wrong, and where the defect sits.

    Args:
        problem: The wrong result.
        measured: The weight that the loop gives to each sample.
        fair: The weight that each sample should have.
        fetched: How often each rank fetched each sample, by rank.

    Returns:
        The problem, with a kind and a sentence that say more; as it was if every weight is right.
    """
    nothing = np.isnan(measured)  # the mean of no samples
    off = np.where(nothing, fair, np.abs(measured - fair))
    if not (off > _TOLERANCE * fair.max()).any():
        return problem
    times = _times(measured, fair, absolute=problem.name == "sum")
    ranks = {
        i: [r for r, seen in enumerate(fetched) for _ in range(seen.get(i, 0))]
        for i in range(len(fair))
    }
    repeated = [i for i, n in enumerate(times) if n > 1] if times else []
    lost = nothing | (np.abs(measured) <= _TOLERANCE * fair)
    dropped = np.flatnonzero(lost).tolist()
    kind: Kind = "weighted wrongly"
    sample = int(off.argmax())
    where = "the division is wrong"
    noted = any(fetched)
    if dropped:
        kind, sample = "dropped", dropped[0]
        where = "its result was lost after that" if ranks[sample] else ""
    elif repeated and (problem.name == "sum" or not noted or len(ranks[repeated[0]]) > 1):
        kind, sample = "counted twice", repeated[0]
        where = "it was dealt out more than once and each time counted"
        if noted and len(ranks[sample]) < 2:
            where = "it was gathered more than once"
    return Problem(
        kind,
        problem.name,
        f"sample {sample} of {len(fair)} counts {show(float(measured[sample]))} instead of "
        f"{show(float(fair[sample]))} in {problem.name}"
        + (f"; {_fetched(ranks[sample])}" if noted else "")
        + (f": {where}" if where else ""),
    )


def _times(measured: Weights, fair: Weights, *, absolute: bool) -> list[int] | None:
    """Return how often each sample counts, if that is a whole number for each of them."""
    shares = measured / fair
    present = shares[shares > _TOLERANCE]
    if not len(present) or np.isnan(shares).any():
        return None
    times = shares if absolute else shares / present.min()
    whole = np.round(times)
    if np.abs(times - whole).max() > 10 * _TOLERANCE:
        return None
    return [int(n) for n in whole]


def _fetched(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank fetched it"
    if len(ranks) == 1:
        return f"it was fetched once, by rank {ranks[0]}"
    by = " and ".join(map(str, sorted(set(ranks))))
    return f"it was fetched {len(ranks)} times, by rank{'s' * (len(set(ranks)) > 1)} {by}"
