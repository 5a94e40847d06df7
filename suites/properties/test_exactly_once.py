"""However samples are dealt, repeated or streamed, each counts once, or every rank names it."""

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, Coverage, HarnessError, evaluate, predict_all
from disteval.metrics import Accuracy, Mean
from hypothesis import strategies as st

from suites.properties.cases import (
    METRICS,
    MOST,
    OF_ROWS,
    RIGHT,
    SAMPLES,
    Model,
    Numbers,
    bits,
    error_of,
    rows,
    scored,
)
from suites.properties.conftest import Each, counts

KINDS = list(SAMPLES)
FEW = 17


BY_LENGTH = st.builds(
    ByLength, st.sampled_from([None, "tokens"]), st.none() | st.integers(5, 20)
) | st.builds(ByLength, st.none(), st.integers(5, 20), st.just(False))


def plans(kind: str, arrays: str = "numpy") -> st.SearchStrategy[dict[str, Any]]:
    """Draw how samples of a kind become batches: the arguments of `evaluate`."""
    # With torch, those of a list are processes, which take longer than all the rest.
    workers = [0] if kind in ("rows", "indexed") else [0, 2]
    plain = st.fixed_dictionaries(
        {
            "batch_size": counts(arrays, 1, 6),
            "fixed_shape": st.booleans(),
            "even_calls": st.sampled_from([None, False]),
            "workers": st.sampled_from(workers),
        },
        optional={"limit": st.integers(1, FEW + 2)},
    )
    if kind == "columns":
        return plain
    by_length = st.fixed_dictionaries({"batch_size": st.integers(1, 6), "by_length": BY_LENGTH})
    return plain | by_length


def evaluated(kind: str, arrays: str, backend: Any, drawn: tuple[int, dict[str, Any]]) -> Any:
    size, plan = drawn
    found = evaluate(
        Model(), SAMPLES[kind](size, arrays),
        {"numbers": Numbers(), "accuracy": Accuracy(counts=True)},
        backend, update={"accuracy": scored}, **plan,
    )  # fmt: skip
    return found.metrics["numbers"], found.metrics["accuracy"]["correct_top1"], found.size


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_counts_each_sample_once_in_order(each: Each, arrays: str, kind: str) -> None:
    """Whatever the batches, the shapes, the limit and the workers are."""

    def expected(drawn: tuple[int, dict[str, Any]]) -> Any:
        size, plan = drawn
        count = min(size, plan.get("limit", size))
        return list(range(count)), int(RIGHT[:count].sum()), count

    drawn = st.tuples(counts(arrays, 1, FEW), plans(kind, arrays))
    each(drawn, partial(evaluated, kind, arrays), expected, len(KINDS))


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[int]]]]:
    """Draw a size, and batches with their ranks that have every sample once or more."""
    size = draw(st.integers(2, FEW))
    repeats = draw(st.lists(st.integers(0, size - 1), max_size=FEW))
    ids = draw(st.permutations([*range(size), *repeats]))
    batches = []
    while ids:
        many = draw(st.integers(1, 6))
        batches.append((draw(st.integers(0, 7)), list(ids[:many])))
        ids = ids[many:]
    return size, batches


def mine(backend: Any, batches: list[tuple[int, list[int]]]) -> list[list[int]]:
    """Return the batches of this rank."""
    return [ids for rank, ids in batches if rank % backend.world_size == backend.rank]


def computed(name: str, arrays: str, backend: Any, drawn: tuple[int, Any]) -> Any:
    size, batches = drawn
    metric = METRICS[name].make()
    metric.dist_backend = backend
    for ids in mine(backend, batches):
        METRICS[name].add(metric, np.array(ids), arrays)
    return metric.compute(size)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_with_ids_counts_each_sample_once(each: Each, arrays: str, name: str) -> None:
    """Whichever rank had it, how often, in which order, and in which batch."""
    each(
        dealt(),
        partial(computed, name, arrays),
        lambda d: METRICS[name].alone(range(d[0])),
        split=len(METRICS),
    )


SHARES = st.lists(st.tuples(st.integers(0, 7), st.lists(st.integers(0, 9), max_size=6)), max_size=6)
LOOPS = st.tuples(
    SHARES | dealt().map(lambda drawn: drawn[1]),  # the first are mostly wrong, these are right
    st.none() | st.integers(0, FEW),
    st.sampled_from(["forbidden", "allowed"]),
)


def certified(backend: Any, drawn: tuple[Any, int | None, Any]) -> Any:
    batches, size, repeats = drawn
    coverage = Coverage(size, backend)
    for ids in mine(backend, batches):
        coverage.count(ids)
    proofs: list[Any] = []
    kind, _ = error_of(backend, lambda: proofs.append(coverage.certify(repeats)))
    return [(each.size, each.counted, each.repeated.tolist()) for each in proofs] or kind


def test_a_loop_is_certified_exactly_if_each_sample_is_there(each: Each) -> None:
    """A loop of one's own, which says what it counted, is right or refused on every rank."""

    def expected(drawn: tuple[Any, int | None, Any]) -> Any:
        batches, size, repeats = drawn
        times = Counter(number for _, ids in batches for number in ids)
        whole = range(max(times, default=-1) + 1 if size is None else size)
        repeated = sorted(number for number, count in times.items() if count > 1)
        if set(times) != set(whole) or (repeated and repeats == "forbidden"):
            return "CoverageError"
        return [(len(whole), times.total(), repeated)]

    each(LOOPS, certified, expected)


@st.composite
def wrongly_dealt(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw a seed, and three samples: one that nobody has, one that two have, and a foreign one."""
    missing, repeated = draw(st.lists(st.integers(10, 90), min_size=2, max_size=2, unique=True))
    return draw(st.integers(0, 99)), missing, repeated, draw(st.integers(200, 300))


def wronged(ids_of: Any, backend: Any, drawn: tuple[int, int, int, int]) -> Any:
    seed, missing, repeated, foreign = drawn
    ids = np.append(np.delete(np.arange(100), missing), [repeated, foreign])
    ids = np.random.default_rng(seed).permutation(ids)[backend.rank :: backend.world_size]
    kind, named = error_of(backend, lambda: ids_of(backend, ids))
    return kind, missing in named, repeated in named, foreign in named


def counted(backend: Any, ids: Any) -> Any:
    coverage = Coverage(100, backend)
    coverage.count(ids)
    return coverage.certify()


def averaged(backend: Any, ids: Any) -> Any:
    mean = Mean(dist_backend=backend)
    mean.add(ids, ids=ids)
    return mean.compute(100)


def test_what_is_missing_repeated_or_foreign_is_named_on_every_rank(each: Each) -> None:
    """By the numbers of the samples, in the same words everywhere; a metric counts repeats once."""
    each(wrongly_dealt(), partial(wronged, counted), lambda _: ("CoverageError", True, True, True))
    each(
        wrongly_dealt(), partial(wronged, averaged), lambda _: ("CoverageError", True, False, True)
    )


def contradicted(name: str, backend: Any, drawn: tuple[int, int, int]) -> Any:
    guilty, sample, other = drawn
    metric = METRICS[name].make()
    metric.dist_backend = backend
    METRICS[name].add(metric, np.arange(MOST))
    if backend.rank == guilty % backend.world_size:
        metric.add(*(each[[other]] for each in METRICS[name].args), ids=[sample])
    kind, named = error_of(backend, lambda: metric.compute(MOST))
    return kind, sample in named


@pytest.mark.parametrize("name", ["accuracy", "cross-entropy", "entries", "regression"])
def test_a_sample_that_has_two_values_is_named_on_every_rank(each: Each, name: str) -> None:
    """A repeated sample whose value differs is no repeat: which of the two would count?"""
    of_one = [bits(METRICS[name].alone([i])) for i in range(MOST)]
    pairs = [(i, j) for i in range(MOST) for j in range(MOST) if of_one[i] != of_one[j]]
    drawn = st.tuples(st.integers(0, 7), st.sampled_from(pairs)).map(lambda d: (d[0], *d[1]))
    each(drawn, partial(contradicted, name), lambda _: ("CoverageError", True), 8)


def predicted(kind: str, arrays: str, folder: Path, backend: Any, drawn: tuple[int, Any]) -> Any:
    size, plan = drawn
    plan.pop("limit", None)
    samples = SAMPLES[kind](size, arrays)
    new = tempfile.mkdtemp(dir=folder) if backend.rank == 0 else None
    path = Path(backend.broadcast_object(new, src=0))
    found = predict_all(Model(), samples, backend, **plan)
    written = predict_all(Model(), samples, backend, folder=path, **plan)
    if backend.rank == 0:
        found = [np.asarray(each["number"]).tolist() for each in (found, written.all())]
    return backend.broadcast_object(found, src=0)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_hold_each_sample_once_in_order(each: Each, kind: str, tmp_path: Path) -> None:
    """In memory and in a folder, which rank 0 gets."""
    drawn = st.tuples(st.integers(1, FEW), plans(kind))
    on_rank = partial(predicted, kind, "numpy", tmp_path)
    each(drawn, on_rank, lambda d: [[*range(d[0])]] * 2, 20)


def seen_otherwise(kind: str, backend: Any, drawn: tuple[int, int, int, bool]) -> Any:
    guilty, one, other, swapped = drawn
    numbers = np.arange(MOST)
    if backend.rank == 1 + guilty % (backend.world_size - 1):
        numbers[[one, other]] = (other, one) if swapped else numbers[other]
    samples = [rows(MOST)[number] for number in numbers]
    try:
        found = evaluate(
            Model(), OF_ROWS[kind](samples), {"mean": Mean()}, backend, 4,
            update=lambda outputs, batch: (outputs["number"],),
        )  # fmt: skip
    except HarnessError:
        return "not exact"
    return "exact" if found.coverage == "exact" else "not exact"


@pytest.mark.world_sizes(2, 3)
@pytest.mark.parametrize("kind", OF_ROWS)
def test_ranks_that_see_other_samples_never_get_a_result_that_is_called_exact(
    each: Each, kind: str
) -> None:
    """Two samples are swapped on one rank, or one of them is another."""
    places = st.lists(st.integers(0, MOST - 1), min_size=2, max_size=2, unique=True)
    drawn = st.tuples(st.integers(0, 7), places, st.booleans())
    each(
        drawn.map(lambda d: (d[0], *d[1], d[2])), partial(seen_otherwise, kind),
        lambda _: "not exact", split=8,
    )  # fmt: skip
