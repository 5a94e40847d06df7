"""What the weights of samples say about a wrong mean or sum."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.audit.answers import Fetched, Result
from disteval.audit.case import ITSELF, Settings
from disteval.audit.findings import Kind
from disteval.audit.judge import Problem, show
from disteval.audit.planted import Planted
from disteval.audit.worlds import AuditWorlds
from disteval.errors import WorldError

_MOST_GROUPS = 16
_MOST_PROBES = 128  # each is a call; larger cases are told without weights
_FEW_PROBES, _MOST_SECONDS = 20, 10.0  # more probes than that may not take longer
_TOLERANCE = 1e-3
_COARSE = 2.0**-7  # of bfloat16
_ROUNDED = (
    "each sample alone counts as it should, so sums overflow or are rounded, as in float16, or "
    "what one sample counts depends on the others; return a number that is meant to be rounded as "
    "the array that it is, not as a Python float"
)

Weights = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """What the samples of a case weigh in a result.

    Attributes:
        weights: The weight of each sample.
        beyond: The result where no sample counts for anything, which should be 0.
    """

    weights: Weights
    beyond: float


class Fetch(NamedTuple):
    """A fetch of a sample: the rank, and its loader worker as `Fetches.take` numbers it."""

    rank: int
    worker: int = ITSELF


def measure(
    worlds: AuditWorlds,
    settings: Settings,
    planted: Planted,
    names: Sequence[str],
    hurry: bool = False,
) -> dict[str, Measured]:
    """Measure the weight of each sample in results, with one call for each sample and one more.

    Args:
        worlds: The worlds in which the function is called.
        settings: The case.
        planted: What its samples hold.
        names: The names of the results.
        hurry: Whether to measure nothing of a case with more samples where that takes long.

    Returns:
        The weights by name, without those of results that are no single numbers. There are none of
        a case with many samples, or of one that breaks.
    """
    if not names or settings.size > _MOST_PROBES:
        return {}
    probed: list[Result] = []
    alone = [range(sample, sample + 1) for sample in range(settings.size)]
    begin = time.monotonic()
    for probe in [*alone, range(0)]:
        if hurry and len(probed) == _FEW_PROBES:
            each = (time.monotonic() - begin) / _FEW_PROBES
            if each * settings.size > _MOST_SECONDS:
                return {}
        try:
            answers = worlds.call(settings, replace(planted, probe=probe))
        except WorldError:
            return {}
        probed.append(next((a.result for a in answers if a.result is not None), {}))
    columns = {name: [result.get(name) for result in probed] for name in names}
    numbers = {n: [v for v in column if isinstance(v, float)] for n, column in columns.items()}
    return {
        name: Measured(np.array(found[:-1]), found[-1])
        for name, found in numbers.items()
        if len(found) == len(probed)
    }


def groups_of(size: int, roundings: Iterable[float]) -> list[range]:
    """Return groups of samples in which a wrong one shows, where a result has few bits.

    In a large case the part of one sample is less than the error that the result may have. In a
    group that alone counts it is more. Of very many groups some are returned, the first and the
    last among them.
    """
    coarsest = max(roundings, default=0.0)
    length = int(1 / (4 * coarsest)) if coarsest else size
    if size <= length:
        return []
    groups = [range(begin, min(begin + length, size)) for begin in range(0, size, length)]
    chosen = np.linspace(0, len(groups) - 1, min(len(groups), _MOST_GROUPS))
    return [groups[round(at)] for at in chosen]


def explain(
    problem: Problem,
    found: Measured,
    fair: Weights,
    fetched: Sequence[Fetched],
    gathered: bool = False,
    rounding: float = 0.0,
) -> Problem:
    """Name the sample whose weight is the most wrong, and where the defect sits.

    Args:
        problem: The wrong result.
        found: The weight that the loop gives to each sample.
        fair: The weight that each sample should have.
        fetched: The fetches of each rank.
        gathered: Whether another result shows that each sample was gathered once.
        rounding: The relative error that the result may have.

    Returns:
        The problem, with a kind and a sentence that say more; with its own kind if every weight is
        right.
    """
    measured = found.weights
    if found.beyond > _COARSE * fair.max() and (measured > found.beyond).all():
        return problem._replace(
            sentence=f"{problem.sentence}; with planted samples of which none counts for anything "
            f"it is {show(found.beyond)} instead of 0: what is no sample counts, such as the rows "
            f"that fill a batch up"
        )
    if found.beyond > _COARSE * fair.max() and np.allclose(measured, found.beyond):
        return problem._replace(
            sentence=f"{problem.sentence}; it is {show(found.beyond)} whichever sample alone "
            f"counts, and also if none does, so it is a constant or the result of another call, "
            f"which may be kept in a file"
        )
    nothing = np.isnan(measured)  # the mean of no samples
    off = np.where(nothing, fair, np.abs(measured - fair))
    if not (off > _COARSE * fair.max()).any():
        return problem._replace(sentence=f"{problem.sentence}; {_ROUNDED}")
    tolerance = max(_TOLERANCE, rounding)
    fetches = fetches_of(fetched, len(fair))
    noted = any(fetched)
    times = np.array([len(each) for each in fetches])
    lost = np.flatnonzero(nothing | (np.abs(measured) <= tolerance * fair))
    kind: Kind = "weighted wrongly"
    sample, where = int(off.argmax()), "the division is wrong" if times.max() < 2 else ""
    if (
        noted
        and times.max() > 1
        and _is_close(measured, _counted(times, fair, problem.name), tolerance)
    ):
        kind, sample = "counted twice", int(times.argmax())
        where = "it was dealt out more than once and each time counted"
    elif len(lost):
        kind, sample = "dropped", int(lost[0])
        where = "its result was lost after that" if fetches[sample] else ""
    elif problem.name == "sum" or not noted:
        repeated = _repeated(measured, fair, tolerance, absolute=problem.name == "sum")
        if len(repeated):
            kind, sample, where = "counted twice", int(repeated[0]), "it was gathered repeatedly"
    return Problem(
        kind,
        problem.name,
        f"sample {sample} of {len(fair)} counts {show(float(measured[sample]))} instead of "
        f"{show(float(fair[sample]))} in {problem.name}"
        + (f"; it was {_fetched(fetches[sample])}" if noted else "")
        + (" and gathered once" if noted and gathered and kind == "weighted wrongly" else "")
        + (f": {where}" if where else ""),
    )


def _counted(times: Weights, fair: Weights, name: str) -> Weights:
    """Return the weights of samples of which each was counted so many times."""
    shares = fair * times
    return shares if name == "sum" else shares / shares.sum()


def _is_close(one: Weights, other: Weights, tolerance: float) -> bool:
    return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance / len(one)))


def _repeated(
    measured: Weights, fair: Weights, tolerance: float, *, absolute: bool
) -> npt.NDArray[np.intp]:
    """Return the samples that count several times, if each counts a whole number of times."""
    shares = measured / fair
    times = shares if absolute else shares / shares.min()
    whole = np.round(times)
    found = np.flatnonzero(whole > 1)
    return found if np.abs(times - whole).max() < 10 * tolerance else found[:0]


def fetches_of(fetched: Sequence[Fetched], size: int) -> list[list[Fetch]]:
    """Return the fetches of each sample by all ranks."""
    return [
        [Fetch(rank, worker) for rank, seen in enumerate(fetched) for worker in seen.get(i, ())]
        for i in range(size)
    ]


def dealt(problem: Problem, fetched: Sequence[Fetched], size: int) -> Problem:
    """Add to a wrong number of samples how they were dealt, as far as that was noted."""
    if not any(fetched) or problem.kind not in ("counted twice", "dropped"):
        return problem
    fetches = fetches_of(fetched, size)
    order = sorted(range(size), key=lambda i: len(fetches[i]))
    sample = order[-1] if problem.kind == "counted twice" else order[0]
    what = f"sample {sample} was {_fetched(fetches[sample])}"
    if len(fetches[sample]) == 1:
        what = "each sample was fetched once, so it happened after that"
        if len(fetches[order[0]]) != len(fetches[order[-1]]):
            return problem
    return problem._replace(sentence=f"{problem.sentence}; {what}")


def _fetched(fetches: Sequence[Fetch]) -> str:
    if not fetches:
        return "fetched by no rank"
    times = "once" if len(fetches) == 1 else f"{len(fetches)} times"
    return f"fetched {times}, by {_fetchers(fetches)}"


def _fetchers(fetches: Sequence[Fetch]) -> str:
    """Return in words who fetched a sample: ranks, or the workers of ranks."""
    if all(fetch.worker == ITSELF for fetch in fetches):
        return _listed("rank", sorted({fetch.rank for fetch in fetches}))
    found = []
    for rank in sorted({fetch.rank for fetch in fetches}):
        workers = sorted({fetch.worker for fetch in fetches if fetch.rank == rank})
        numbered = [worker for worker in workers if worker >= 0]
        others = [-worker for worker in workers if worker < ITSELF]
        parts = [("worker", numbered), ("process", others)]
        found += [f"{_listed(what, some)} of rank {rank}" for what, some in parts if some]
        found += [f"rank {rank}"] * (ITSELF in workers)
    return " and ".join(found)


def _listed(what: str, numbers: Sequence[int]) -> str:
    plural = ("es" if what.endswith("s") else "s") * (len(numbers) > 1)
    *others, last = map(str, numbers)
    return f"{what}{plural} " + (f"{', '.join(others)} and {last}" if others else last)
