"""What is wrong with a mean, a sum or a number of samples: who fetched each, and what it weighs.

One kind of mistake decides what samples weigh beside each other, as a mean of means does. Another
multiplies all weights by one factor, as a sum over ranks does that should be a mean. A function may
make one of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.audit.answers import Answer, Fetched, Result, Value, first_result
from disteval.audit.case import ITSELF, Settings
from disteval.audit.findings import Kind
from disteval.audit.judge import Judgement, Problem, show
from disteval.audit.planted import Planted
from disteval.audit.worlds import Calls

TOLERANCE = 1e-3
"""Relative; a weight that is measured is that exact."""

_ROUNDS = 5  # in a case of so many full batches on each rank no two factors are the same
_MOST_GROUPS = 16
_MOST_PROBES = 128  # each is a call; larger cases are told without weights
_FEW_PROBES, _MOST_SECONDS = 20, 10.0  # more probes than that may not take longer
_OTHERS = 4  # a class may be the same by chance
_COARSE = 2.0**-7  # of bfloat16
_ROUNDED = (
    "each sample alone counts as it should, so sums overflow or are rounded, as in float16, large "
    "values are cut off, or what one sample counts depends on the others; return a number that is "
    "meant to be rounded as the array that it is, not as a Python float"
)

_LOST = "its result was lost after that"
_DIVISION = "the division is wrong"
_REPEATEDLY = "it was gathered repeatedly"
_GATHERED = {"count", "ids"}  # where one of these is right, samples were lost or repeated later
_OF_TOKENS = "tokens are lost or repeated, or the division is wrong"


Weights = npt.NDArray[np.float64]

Groups = Sequence[tuple[list[int], float]]
"""Samples, and the weight that they have together."""

Again = Callable[[Settings], tuple[float, Sequence[Fetched]]]
"""Calls the function in another case.

It returns the result, divided by the right one, and the fetches; NaN where the call fails.
"""


class Measured(NamedTuple):
    """What the samples of a case weigh in a result.

    Attributes:
        weights: The weight of each sample.
        beyond: The result where no sample counts for anything, which should be 0.
    """

    weights: Weights
    beyond: float


def measure(
    call: Calls, settings: Settings, planted: Planted, names: Sequence[str], *, hurry: bool = False
) -> dict[str, Measured]:
    """Measure the weight of each sample in results, with one call for each sample and one more.

    Args:
        call: Calls the function.
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
        answers = call.attempt(settings, replace(planted, probe=probe))
        if not answers:
            return {}
        probed.append(first_result(answers))
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
    call: Calls, settings: Settings, problem: Problem, judgement: Judgement, found: Measured
) -> Problem:
    """Name the sample whose weight is the most wrong, and where the defect sits.

    Args:
        call: Calls the function.
        settings: The case.
        problem: The wrong result.
        judgement: The judgement of the call.
        found: The weight that the loop gives to each sample.

    Returns:
        The problem, with a kind and a sentence that say more; with its own kind if every weight is
        right.
    """
    planted, fetched = judgement.planted, [answer.fetched for answer in judgement.answers]
    right = {*judgement.result} - {each.name for each in judgement.problems}
    rounding = judgement.roundings.get(problem.name, 0.0)
    is_accuracy = problem.name == "accuracy"
    by_tokens = problem.name == "loss" and planted.tokens
    measured, fair = found.weights, planted.fair_weights(problem.name)
    if (beyond := found.beyond) > _COARSE * fair.max():
        why = f"with planted samples of which none counts for anything it is {show(beyond)} instead"
        if (measured > beyond).all():
            why += " of 0: what is no sample counts, such as the rows that fill a batch up"
        elif np.allclose(measured, beyond):
            why = f"it is {show(beyond)} whichever sample alone counts, and also if none does, so "
            why += "it is a constant or the result of another call, which may be kept in a file"
            why += ", or wrong predictions count as right" * is_accuracy
        else:
            why += " of 0, so something counts that should not"
            why += ", such as a wrong prediction" * is_accuracy
        return problem._replace(sentence=f"{problem.sentence}; {why}")
    nothing = np.isnan(measured)  # the mean of no samples
    off = np.where(nothing, fair, np.abs(measured - fair))
    if not (off > _COARSE * fair.max()).any():
        of_tokens = "; some tokens of a sample may also count otherwise than others" * by_tokens
        return problem._replace(sentence=f"{problem.sentence}; {_ROUNDED}{of_tokens}")
    tolerance = max(TOLERANCE, rounding)
    fetches = fetches_of(fetched, len(fair))
    noted = any(fetched)
    times = np.array([len(each) for each in fetches])
    lost = np.flatnonzero(nothing | (np.abs(measured) <= tolerance * fair))
    kind: Kind = "weighted wrongly"
    sample, where = int(off.argmax()), "" if times.max() > 1 else _DIVISION
    repeats = _counted(times, fair, problem.name) if times.max() > 1 else fair
    if ratio(measured, repeats, tolerance) > 0 and not ratio(measured, fair, tolerance) > 0:
        kind, sample = "counted twice", int(times.argmax())
    elif len(lost):
        kind, sample = "dropped", int(lost[0])
        where = _LOST if fetches[sample] else ""
        probe = range(sample, sample + 1)
        seeds = range(planted.seed + 1, planted.seed + _OTHERS)
        others = (replace(planted, seed=seed, probe=probe) for seed in seeds)
        if where and any(
            _number(call.attempt(settings, other), problem.name) > fair[sample] / 2
            for other in others
        ):
            where = "where it holds something else, such as another label, it counts"
    elif problem.name == "sum" or not noted:
        repeated = _repeated(measured, fair, tolerance, absolute=problem.name == "sum")
        if len(repeated):
            kind, sample, where = "counted twice", int(repeated[0]), _REPEATEDLY

    def again(larger: Settings) -> tuple[float, Sequence[Fetched]]:
        samples = replace(planted, size=larger.size, probe=None)
        answers = call.attempt(larger, samples)
        value = _number(answers, problem.name)
        return value / samples.truth()[problem.name], [answer.fetched for answer in answers]

    value = judgement.result.get(problem.name)
    is_guessed = where in (_LOST, _DIVISION) and not rounding
    if is_guessed and not _adds_up(problem.name, found, planted, value):
        where = "what a sample counts depends on what the others hold"
    elif where == _LOST:
        where = share_of({*range(len(fair))} - {*lost.tolist()}, settings, fetched) or where
    elif kind != "dropped":
        shape = shape_of(measured, fair, repeats, settings, fetched, again, tolerance)
        where = shape or (_OF_TOKENS if by_tokens and where == _DIVISION else where)
    told = f"sample {sample} of {len(fair)} counts {show(float(measured[sample]))} instead of "
    told += f"{show(float(fair[sample]))} in {problem.name}"
    told += f"; it was {described(fetches[sample])}" if noted else ""
    is_once = noted and kind == "weighted wrongly" and bool(right & _GATHERED)
    told += " and gathered once" * is_once + (f": {where}" if where else "")
    return Problem(kind, problem.name, told)


def _adds_up(name: str, found: Measured, planted: Planted, value: Value | None) -> bool:
    """Return whether samples count in the result what they count alone, as far as that is known."""
    if planted.tokens or not isinstance(value, float) or np.isnan([*found.weights, value]).any():
        return True
    parts = found.weights * (planted.right if name == "accuracy" else planted.values)
    return bool(abs(parts.sum() - value) <= TOLERANCE * max(abs(value), 1.0))


def _number(answers: Sequence[Answer], name: str) -> float:
    """Return the first rank's result of that name; NaN if no rank has it, or it is a list."""
    value = first_result(answers).get(name)
    return value if isinstance(value, float) else np.nan


def _counted(times: Weights, fair: Weights, name: str) -> Weights:
    """Return the weights of samples of which each was counted so many times."""
    shares = fair * times
    return shares if name == "sum" else shares / shares.sum()


def _repeated(
    measured: Weights, fair: Weights, tolerance: float, *, absolute: bool
) -> npt.NDArray[np.intp]:
    """Return the samples that count several times, if each counts a whole number of times."""
    shares = measured / fair
    times = shares if absolute else shares / shares.min()
    whole = np.round(times)
    found = np.flatnonzero(whole > 1)
    return found if np.abs(times - whole).max() < 10 * tolerance else found[:0]


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
        padded = f"it is divided by {filled}, the number of samples with padding"
        summed = (
            f"it is multiplied by {filled} and divided by {size}, so padding is in the sum and "
        )
        summed += "not in the number of samples"
        found += [(padded, size / filled), (summed, filled / size)]
    empty = sum(not each for each in fetched)
    what = f"it is divided by the number of ranks, of which {empty} had no sample"
    return [*found, (what, 1 - empty / ranks)]


def _means_of_means(settings: Settings, fetched: Sequence[Fetched]) -> Iterator[tuple[str, Groups]]:
    """Yield means of means, with the samples that each of these is taken of, and its weight."""
    ranks = [batches for batches in _batches(settings, fetched) if batches]
    count = sum(map(len, ranks))
    of_batches = [(batch, 1 / count) for batches in ranks for batch in batches]
    yield "it is the mean of the means of batches", of_batches
    of_ranks = [([*chain(*batches)], 1 / len(ranks)) for batches in ranks]
    yield "it is the mean of the means of ranks", of_ranks
    both = [(batch, 1 / len(ranks) / len(batches)) for batches in ranks for batch in batches]
    yield "it is the mean over ranks of their means of batches", both


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


Fetch = tuple[int, int]
"""A fetch of a sample: the rank, and its loader worker as `Fetches.take` numbers it."""


def fetches_of(fetched: Sequence[Fetched], size: int) -> list[list[Fetch]]:
    """Return the fetches of each sample by all ranks."""
    found: list[list[Fetch]] = [[] for _ in range(size)]
    for rank, each in enumerate(fetched):
        for sample, worker in each:
            found[sample].append((rank, worker))
    return found


def dealt(problem: Problem, fetched: Sequence[Fetched], size: int) -> Problem:
    """Add to a wrong number of samples how they were dealt, as far as that was noted."""
    fetches = fetches_of(fetched, size)
    left_out = sum(not each for each in fetches)
    if problem.kind == "weighted wrongly" and 0 < left_out < size and not problem.is_explained:
        problem = problem._replace(kind="dropped")
    if not any(fetched) or problem.kind not in ("counted twice", "dropped"):
        return problem
    order = sorted(range(size), key=lambda i: len(fetches[i]))
    sample = order[-1] if problem.kind == "counted twice" else order[0]
    what = f"sample {sample} was {described(fetches[sample])}"
    if not fetches[sample] and left_out > 1:
        what += f", nor were {left_out - 1} others"
    if len(fetches[sample]) == 1:
        what = "each sample was fetched once, so it happened after that"
        if len(fetches[order[0]]) != len(fetches[order[-1]]):
            return problem
    return problem._replace(sentence=f"{problem.sentence}; {what}")


def described(fetches: Sequence[Fetch]) -> str:
    """Return in words how often a sample was fetched, and by whom."""
    if not fetches:
        return "fetched by no rank"
    times = "once" if len(fetches) == 1 else f"{len(fetches)} times"
    return f"fetched {times}, by {_fetchers(fetches)}"


def _fetchers(fetches: Sequence[Fetch]) -> str:
    """Return in words who fetched a sample: ranks, or the workers of ranks."""
    ranks = sorted({rank for rank, _ in fetches})
    if all(worker == ITSELF for _, worker in fetches):
        return _listed("rank", ranks)
    found = []
    for rank in ranks:
        workers = sorted({worker for other, worker in fetches if other == rank})
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
