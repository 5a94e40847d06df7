"""The judgement of one call: which answers of the ranks are wrong, before it is explained why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from disteval.audit.answers import LISTS, SCORES, Answer, Result, Value, is_close, rounds_to
from disteval.audit.findings import Kind
from disteval.audit.planted import KNOWN, WEIGHED, Planted

_NAMED = 5
_OF_SCORES = 2.0**-6  # kernels may round them otherwise in batches of other sizes
_DIGITS = range(2, 6)  # to which people round; fewer may be another number


class Problem(NamedTuple):
    """A wrong result of one call.

    Attributes:
        kind: What is wrong, as far as this result alone shows it.
        name: The name of the result.
        sentence: What was found and what was expected.
        is_explained: Whether the sentence says why, so that there is nothing to measure.
    """

    kind: Kind
    name: str
    sentence: str
    is_explained: bool = False

    @property
    def is_weighed(self) -> bool:
        """Whether probes can explain it by the weight of each sample."""
        return self.kind == "weighted wrongly" and self.name in WEIGHED and not self.is_explained


class Judgement(NamedTuple):
    """The judgement of one call.

    Attributes:
        planted: What the samples held.
        answers: Each rank's answer, by rank.
        result: The result of the first rank that has one.
        problems: The wrong results; at most one for each name.
        refused: Why the result could not be judged.
        compared: The numbers without a known truth that were compared with those of one rank;
            None stands for a number that could not be.
        roundings: The relative errors that results may have; see `Answer`.
    """

    planted: Planted
    answers: Sequence[Answer] = ()
    result: Mapping[str, Value] = MappingProxyType({})
    problems: Sequence[Problem] = ()
    refused: str = ""
    compared: Mapping[str, Value | None] = MappingProxyType({})
    roundings: Mapping[str, float] = MappingProxyType({})

    @property
    def is_right(self) -> bool:
        """Whether ranks answered, and nothing is wrong or can't be judged."""
        return bool(self.answers) and not self.problems and not self.refused


def judge(planted: Planted, answers: Sequence[Answer], reference: Result | None) -> Judgement:
    """Judge the answers of all ranks to one call.

    Args:
        planted: What the samples hold.
        answers: Each rank's answer, by rank.
        reference: The result on one rank, to which names without a known truth are held; None
            leaves them out.
    """
    unread = Judgement(planted, answers)
    for rank, answer in enumerate(answers):
        if answer.refused:
            return unread._replace(refused=f"rank {rank}: {answer.refused}")
    given = [rank for rank, answer in enumerate(answers) if answer.result is not None]
    if not given:
        told = "every rank returned None; return a dict of names and numbers on one of them"
        return unread._replace(refused=told)
    first = answers[given[0]]
    assert first.result is not None
    found, truth = first.result.get("accuracy", 0.0), planted.truth().get("accuracy", 0.0)
    if isinstance(found, float) and found > 1.5 and is_close(found, 100 * truth):
        percent = f"accuracy is {show(found)}, which is in percent; return a share from 0 to 1"
        return unread._replace(refused=percent)
    coarsest = sorted((item for a in answers for item in a.roundings.items()), key=lambda i: i[1])
    roundings = dict(coarsest)
    problems: dict[str, Problem] = {}
    for rank in given[1:]:
        result = answers[rank].result or {}
        for problem in _disagreements(given[0], first.result, rank, result, roundings):
            problems.setdefault(problem.name, problem)
    for problem in [
        *_numbers(planted, first.result, reference, roundings, len(answers)),
        *_lists(planted, first.result, first.ordered),
        *_scores(answers, reference or {}),
    ]:
        problems.setdefault(problem.name, problem)
    alone = reference or {}
    compared = {
        name: value if name in alone and not is_close(value, math.nan) else None
        for name, value in first.result.items()
        if name not in (*KNOWN, *LISTS, SCORES)
    }
    wrong = tuple(problems.values())
    return Judgement(planted, answers, first.result, wrong, "", compared, roundings)


def changed_since(first: Judgement, again: Judgement) -> Problem | None:
    """Return a result that differs between two calls with the same samples."""
    before, after = first.result, again.result
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if name in (*LISTS, SCORES) and None not in (one, other):
            continue
        if one is None or other is None or not is_close(one, other, again.roundings.get(name, 0.0)):
            told = f"{name} is {show(one)} in one call and {show(other)} in a later one"
            return Problem("differs from call to call", name, f"{told}, with the same samples")
    return None


def _disagreements(
    first: int, expected: Result, rank: int, found: Result, roundings: Mapping[str, float]
) -> Iterable[Problem]:
    for name in dict.fromkeys([*expected, *found]):
        if name == SCORES:
            continue
        one, other = expected.get(name), found.get(name)
        if one is None or other is None or not is_close(one, other, roundings.get(name, 0.0)):
            told = f"{name} is {show(one)} on rank {first} and {show(other)} on rank {rank}"
            remedy = "all ranks must return the same, or None on all but one"
            yield Problem("ranks disagree", name, f"{told}; {remedy}")


def _numbers(
    planted: Planted,
    result: Result,
    reference: Result | None,
    roundings: Mapping[str, float],
    world_size: int,
) -> Iterable[Problem]:
    truth = planted.truth()
    for name, value in result.items():
        if name in (*LISTS, SCORES):
            continue
        rounding = roundings.get(name, 0.0)
        if name in truth:
            if is_close(value, truth[name], rounding):
                continue
            kind: Kind = "weighted wrongly"
            if name == "count" and isinstance(value, float):
                kind = "counted twice" if value > truth[name] else "dropped"
            sentence = f"{name} is {show(value)} instead of {show(truth[name])}"
            rounded = [n for n, v in rounds_to(truth[name]).items() if is_close(value, v)]
            # 0 and 1 are near many numbers, and have other causes.
            is_part = isinstance(value, float) and not value.is_integer()
            digits = next((d for d in _DIGITS if is_part and value == round(truth[name], d)), None)
            if planted.probe is not None:
                first, last = planted.probe[0], planted.probe[-1]
                sentence += f" if samples {first} to {last} alone count"
            if digits is not None:
                sentence += f", rounded to {digits} digits; return the number as it is"
            elif rounded:
                sentence += f", which {rounded[0]} rounds to that"
            yield Problem(kind, name, sentence, digits is not None)
        elif reference is not None and not is_close(value, reference.get(name, []), rounding):
            on = f"on {world_size} rank{'s' * (world_size > 1)}"
            alone = f"{show(reference.get(name))} on one rank in one batch"
            told = f"{name} is {show(value)} {on}, and {alone}"
            yield Problem("differs from one rank", name, told)


def _lists(planted: Planted, result: Result, ordered: bool) -> Iterable[Problem]:
    ids, outputs = (result.get(name) for name in LISTS)
    if isinstance(ids, list):
        yield from _compared("ids", ids, [float(i) for i in planted.ids], ordered)
    if not isinstance(outputs, list):
        return
    expected = [float(each) for each in planted.predicted]
    if isinstance(ids, list) and len(ids) == len(outputs):
        known = dict(zip(map(float, planted.ids), expected, strict=True))
        apart = [i for i, out in zip(ids, outputs, strict=True) if known.get(i) != out]
        if apart:
            told = f"the output that is returned with id {show(apart[0])} is that of another sample"
            told += f"; {len(apart)} of {len(ids)} are"
            yield Problem("outputs of other samples", "outputs", told)
            return
    yield from _compared("outputs", outputs, expected, ordered)


def _scores(answers: Sequence[Answer], reference: Result) -> Iterable[Problem]:
    """Hold scores to those of one rank, since all that a function makes of them is not known."""
    alone = reference.get(SCORES)
    for rank, answer in enumerate(answers):
        scores = (answer.result or {}).get(SCORES)
        if not isinstance(scores, list) or not isinstance(alone, list):
            continue
        for one, other in zip(scores, alone, strict=False):
            if not is_close(one, other, _OF_SCORES):
                told = (
                    f"a score is {show(one)} on rank {rank} of {len(answers)}, and {show(other)} "
                )
                told += (
                    "on one rank in one batch; the scores of a sample must not depend on the other "
                    "samples of its batch, or on the number of ranks"
                )
                yield Problem("differs from one rank", "outputs", told)
                return


def _compared(
    name: str, found: list[float], expected: list[float], ordered: bool
) -> Iterable[Problem]:
    """Compare what was returned for each sample with what should have been."""
    more, fewer = Counter(found), Counter(expected)
    extra, missing = more - fewer, fewer - more
    what = "ids" if name == "ids" else "predictions"
    if not extra and not missing:
        if not ordered or found == expected:
            return
        at = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if len({*pair}) > 1)
        told = f"the {what} were promised in the order of the data set, and number {at} is "
        told += f"{show(found[at])} instead of {show(expected[at])}"
        yield Problem("outputs in another order", name, told)
        return
    kind: Kind = "outputs of other samples"
    if len(found) < len(expected) or (name == "ids" and missing):
        kind = "dropped"
    elif len(found) > len(expected):
        kind = "counted twice"
    parts = [f"the number of {what} is {len(found)} instead of {len(expected)}"]
    if len(found) == len(expected):
        parts = [f"there are as many {what} as samples, but other ones"]
    parts += [f"missing: {_some(missing)}"] if missing else []
    parts += [f"too often: {_some(extra)}"] if extra else []
    yield Problem(kind, name, "; ".join(parts))


def _some(counted: Mapping[float, int]) -> str:
    shown = ", ".join(show(value) for value in sorted(counted)[:_NAMED])
    return shown + ", …" * (len(counted) > _NAMED)


def show(value: Any) -> str:
    """Return a value with the digits that matter."""
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value[:_NAMED])) + ", …" * (len(value) > _NAMED) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
