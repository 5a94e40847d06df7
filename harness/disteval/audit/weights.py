"""What the weights of samples say about a wrong mean or sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from disteval.audit.findings import Kind
from disteval.audit.judge import Problem, show

_TOLERANCE = 1e-3
_COARSE = 2.0**-7  # of bfloat16
_ROUNDED = (
    "each sample alone counts as it should, so sums overflow or are rounded, as in float16, or "
    "what one sample counts depends on the others"
)

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
        The problem, with a kind and a sentence that say more; with its own kind if every weight is
        right.
    """
    nothing = np.isnan(measured)  # the mean of no samples
    off = np.where(nothing, fair, np.abs(measured - fair))
    if not (off > _COARSE * fair.max()).any():
        return problem._replace(sentence=f"{problem.sentence}; {_ROUNDED}")
    ranks = [
        [rank for rank, seen in enumerate(fetched) for _ in range(seen.get(sample, 0))]
        for sample in range(len(fair))
    ]
    noted = any(fetched)
    times = np.array([len(each) for each in ranks])
    lost = np.flatnonzero(nothing | (np.abs(measured) <= _TOLERANCE * fair))
    kind: Kind = "weighted wrongly"
    sample, where = int(off.argmax()), "the division is wrong" if times.max() < 2 else ""
    if noted and times.max() > 1 and _is_close(measured, _counted(times, fair, problem.name)):
        kind, sample = "counted twice", int(times.argmax())
        where = "it was dealt out more than once and each time counted"
    elif len(lost):
        kind, sample = "dropped", int(lost[0])
        where = "its result was lost after that" if ranks[sample] else ""
    elif problem.name == "sum" or not noted:
        repeated = _repeated(measured, fair, absolute=problem.name == "sum")
        if len(repeated):
            kind, sample, where = "counted twice", int(repeated[0]), "it was gathered repeatedly"
    return Problem(
        kind,
        problem.name,
        f"sample {sample} of {len(fair)} counts {show(float(measured[sample]))} instead of "
        f"{show(float(fair[sample]))} in {problem.name}"
        + (f"; {_fetched(ranks[sample])}" if noted else "")
        + (f": {where}" if where else ""),
    )


def _counted(times: Weights, fair: Weights, name: str) -> Weights:
    """Return the weights of samples of which each was counted so many times."""
    shares = fair * times
    return shares if name == "sum" else shares / shares.sum()


def _is_close(one: Weights, other: Weights) -> bool:
    return bool(np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE / len(one)))


def _repeated(measured: Weights, fair: Weights, *, absolute: bool) -> npt.NDArray[np.intp]:
    """Return the samples that count several times, if each counts a whole number of times."""
    shares = measured / fair
    times = shares if absolute else shares / shares.min()
    whole = np.round(times)
    found = np.flatnonzero(whole > 1)
    return found if np.abs(times - whole).max() < 10 * _TOLERANCE else found[:0]


def _fetched(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank fetched it"
    if len(ranks) == 1:
        return f"it was fetched once, by rank {ranks[0]}"
    by = " and ".join(map(str, sorted(set(ranks))))
    return f"it was fetched {len(ranks)} times, by rank{'s' * (len(set(ranks)) > 1)} {by}"
