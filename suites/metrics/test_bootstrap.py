"""Confidence intervals against resamples made sample by sample, and how often they hold."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import (
    Accuracy,
    Bootstrap,
    Grouped,
    Mean,
    Perplexity,
    Regression,
    SampleRows,
    Weighted,
)

from suites.metrics.cases import SIZE, SUMS, alone, assert_same
from suites.metrics.test_weights import Own

IDS = np.arange(SIZE)
GAMMA = 0x9E3779B97F4A7C15
SIXTEEN_BITS = [24109, 24109, 12056, 4018, 1005, 200, 33, 5, 1]
"""How many of the numbers of 16 bits stand for 0, 1, 2, … times."""


def splitmix(state: int) -> int:
    mixed = (state + GAMMA) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return mixed ^ (mixed >> 31)


def times(seed: int, resample: int, sample: int) -> int:
    """Return how often a sample is in a resample, without arrays."""
    state = splitmix(sample) + splitmix(seed) + GAMMA * (resample // 4)
    bits = splitmix(state % 2**64) >> 16 * (resample % 4) & 0xFFFF
    return int(np.searchsorted(np.cumsum(SIXTEEN_BITS), bits, side="right"))


def interval(results: list[Any], confidence: float) -> tuple[Any, Any]:
    """Return the ends of the percentile interval of each number, at any depth."""
    if isinstance(results[0], dict):
        parts = {key: interval([each[key] for each in results], confidence) for key in results[0]}
        return tuple({key: ends[at] for key, ends in parts.items()} for at in (0, 1))  # type: ignore[return-value]
    table = np.array(results, dtype=float)
    low, high = np.empty(table.shape[1:]), np.empty(table.shape[1:])
    for place in np.ndindex(table.shape[1:]):
        found = sorted(x for x in table[(slice(None), *place)].tolist() if not math.isnan(x))
        outside = math.floor(round(len(found) * (1 - confidence) / 2, 6))
        low[place], high[place] = (
            (found[outside], found[-1 - outside]) if found else (math.nan, math.nan)
        )
    return low, high


def with_ends(value: Any, low: Any, high: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_ends(value[key], low[key], high[key]) for key in value}
    if np.asarray(value).dtype.kind != "f":
        return value
    scalar = not isinstance(value, np.ndarray)
    return {
        "value": value,
        "low": float(low) if scalar else low,
        "high": float(high) if scalar else high,
    }


@pytest.mark.parametrize("case", SUMS)
def test_intervals_are_those_of_repeated_samples(case: str) -> None:
    make, args, named = SUMS[case]
    resamples, confidence, seed = 21, 0.8, 7
    results = []
    for resample in range(resamples):
        repeats = [times(seed, resample, sample) for sample in range(SIZE)]
        some = {name: np.repeat(array, repeats, axis=0) for name, array in named.items()}
        results.append(alone(make(), [np.repeat(a, repeats, axis=0) for a in args], some))
    expected = with_ends(alone(make(), args, named), *interval(results, confidence))
    settings = {"resamples": resamples, "confidence": confidence, "seed": seed}
    assert_same(alone(Bootstrap(make(), **settings), args, {**named, "ids": IDS}), expected)


def test_weights_are_resampled_with_their_samples() -> None:
    random = np.random.default_rng(1)
    values, weights = random.normal(size=SIZE), random.lognormal(0, 9, SIZE)
    results = []
    for resample in range(20):
        repeats = [times(0, resample, sample) for sample in range(SIZE)]
        some = {"weights": np.repeat(weights, repeats)}
        results.append(alone(Weighted(Mean()), (np.repeat(values, repeats),), some))
    value = alone(Weighted(Mean()), (values,), {"weights": weights})
    expected = with_ends(value, *interval(results, 0.9))
    metric = Bootstrap(Weighted(Mean()), resamples=20, confidence=0.9)
    assert_same(alone(metric, (values,), {"weights": weights, "ids": IDS}), expected)


def test_the_rows_of_a_sample_are_resampled_together() -> None:
    random = np.random.default_rng(2)
    values, rows = random.normal(size=SIZE * 3), np.full(SIZE, 3)
    results = []
    for resample in range(20):
        repeats = np.repeat([times(0, resample, sample) for sample in range(SIZE)], rows)
        results.append(alone(Mean(), (np.repeat(values, repeats),), {}))
    expected = with_ends(alone(Mean(), (values,), {}), *interval(results, 0.9))
    metric = Bootstrap(Mean(dist_backend="non_dist"), resamples=20, confidence=0.9)
    for ids in np.array_split(np.arange(SIZE)[::-1], 3):
        some = values.reshape(SIZE, 3)[ids].reshape(-1)
        metric.add(some, ids=SampleRows(ids, 3))
    metric.add(values[:3], ids=SampleRows([0], 3))  # again, and it counts once
    assert_same(metric.compute(size=SIZE), expected)


def test_the_numbers_have_mean_1_and_variance_1() -> None:
    counts = np.array(SIXTEEN_BITS)
    numbers = np.arange(len(counts))
    assert counts.sum() == (counts * numbers).sum() == 2**16
    assert (counts * (numbers - 1) ** 2).sum() == 2**16
    poisson = [2**16 / math.e / math.factorial(number) for number in numbers]
    np.testing.assert_allclose(counts, poisson, atol=2)


def test_samples_resamples_and_seeds_are_independent() -> None:
    """The numbers are those of `times`, as the intervals show, and of them these hold."""
    drawn = np.array(
        [[[times(seed, r, i) - 1 for r in range(40)] for i in range(400)] for seed in (0, 1)]
    )
    for first, second in (
        (drawn[0], drawn[1]),
        (drawn[0][1:], drawn[0][:-1]),
        (drawn[0][:, 1:], drawn[0][:, :-1]),
        (drawn[0][:, 4:], drawn[0][:, :-4]),
    ):
        # The mean of 16,000 products of independent numbers with mean 0 and variance 1.
        assert abs((first * second).mean()) < 5 / math.sqrt(16_000)


def test_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    random = np.random.default_rng(4)
    held = 0
    for trial in range(300):
        metric = Bootstrap(Mean(dist_backend="non_dist"), resamples=100, confidence=0.9, seed=trial)
        found = metric(random.normal(5, 2, 60), ids=np.arange(60))["mean"]
        held += found["low"] <= 5 <= found["high"]
    # Three standard deviations of a fraction over 300 trials are 0.052; intervals of 60 samples
    # are too narrow by a factor of sqrt(59 / 60) and have the tails of a normal distribution.
    assert 0.83 <= held / 300 <= 0.95


def test_more_confidence_makes_a_wider_interval_and_seeds_another_one() -> None:
    def found(**named: Any) -> tuple[float, float]:
        metric = Bootstrap(Mean(dist_backend="non_dist"), **named)
        whole = metric(np.arange(50.0), ids=np.arange(50))["mean"]
        return whole["low"], whole["high"]

    assert found() == found()
    assert found()[0] > found(confidence=0.99)[0]
    assert found()[1] < found(confidence=0.99)[1]
    assert found() != found(seed=1)
    low, high = found(resamples=1)
    assert low == high


def test_resamples_without_a_result_are_left_out() -> None:
    one = Bootstrap(Regression(dist_backend="non_dist"))([1.0], [3.0], ids=[0])
    assert one["mae"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert all(math.isnan(one["r2"][end]) for end in ("value",))
    perplexity = Bootstrap(Perplexity(dist_backend="non_dist"))
    found = perplexity([[-1.0], [-3.0]], mask=[[1], [0]], ids=[0, 1])["cross_entropy"]
    assert found == {"value": 1.0, "low": 1.0, "high": 1.0}
    spread = Bootstrap(Own(lambda ones, size: math.nan))([1, 0], ids=[0, 1])["result"]
    assert all(map(math.isnan, spread.values()))


def test_infinite_results_stay_infinite() -> None:
    found = Bootstrap(Mean(dist_backend="non_dist"))([math.inf, 1.0], ids=[0, 1])["mean"]
    assert found == {"value": math.inf, "low": 1.0, "high": math.inf}


def test_it_needs_ids_and_says_so() -> None:
    metric = Bootstrap(Mean(dist_backend="non_dist"))
    with pytest.raises(UsageError, match="ids"):
        metric.add([1.0])
    with pytest.raises(UsageError, match=r"1 rows.* 2"):
        metric.add([1.0, 2.0], ids=[0])
    with pytest.raises(UsageError, match="no samples"):
        metric.compute()
    assert metric.uses_ids
    assert Grouped(metric).uses_ids
    assert not Grouped(Mean()).uses_ids


def test_memory_does_not_grow_with_samples_times_resamples() -> None:
    metric = Bootstrap(Mean(dist_backend="non_dist"))
    size = 10_000  # whose 1000 resamples would take 80 MB
    tracemalloc.start()
    try:
        metric.add(np.zeros(size), ids=np.arange(size))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_too_many_sums_are_refused() -> None:
    metric = Bootstrap(Accuracy(tuple(range(1, 20)), dist_backend="non_dist"), resamples=10**6)
    with pytest.raises(UsageError, match=r"1000000.*19"):
        metric.add(np.eye(20), np.arange(20), ids=np.arange(20))
