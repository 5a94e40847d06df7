"""Errors of predicted numbers against fractions and scikit-learn."""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from disteval.metrics import Regression
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.metrics.test_exact import finite, same

NAMES = ["mae", "mse", "rmse", "r2", "explained_variance"]
PAIRS = st.lists(st.tuples(finite, finite), min_size=1, max_size=20)


def rounded(part: Fraction, whole: Fraction) -> float:
    try:
        return float(part / whole) if whole else float(not part)
    except OverflowError:
        return math.inf if part > 0 else -math.inf


def root(number: Fraction) -> float:
    """Return the float64 nearest to a square root, of which Decimal keeps 2000 digits."""
    with localcontext(Context(prec=2000)):
        return float((Decimal(number.numerator) / number.denominator).sqrt())


def by_fractions(pairs: list[tuple[float, float]]) -> list[float]:
    size = len(pairs)
    true = [Fraction(label) for _, label in pairs]
    errors = [label - Fraction(p) for (p, _), label in zip(pairs, true, strict=True)]

    def around_mean(values: list[Fraction]) -> Fraction:
        mean = sum(values, Fraction()) / size
        return sum(((value - mean) ** 2 for value in values), Fraction())

    squared, spread = sum((e * e for e in errors), Fraction()), around_mean(true)
    mse = rounded(squared, Fraction(size))
    r2 = rounded(spread - squared, spread) if spread else float(not squared)
    varied = around_mean(errors)
    explained = rounded(spread - varied, spread) if spread else float(not varied)
    mae = rounded(sum(map(abs, errors), Fraction()), Fraction(size))
    return [mae, mse, root(squared / size), r2 if size > 1 else math.nan, explained]


def test_a_root_just_above_the_middle_of_two_floats_is_rounded_up() -> None:
    errors = [2.0, 2.0**-25, 2.0**-52, 2.0**-500]  # the mean square is (1 + 2**-53)**2 and a little
    found = Regression(dist_backend="non_dist")(errors, np.zeros(4))
    assert found["rmse"] == 1 + 2.0**-52


def test_very_many_products_of_one_exponent_are_exact() -> None:
    value, size = -1.0 - 2.0**-52, (1 << 20) + 1
    found = Regression(dist_backend="non_dist")(np.full(size, value), np.zeros(size))
    assert (found["mae"], found["rmse"]) == (abs(value), abs(value))
    assert found["mse"] == value**2


@given(PAIRS)
def test_every_number_is_the_nearest_to_the_true_one(pairs: list[tuple[float, float]]) -> None:
    predicted, true = np.array(pairs).T
    found = Regression(dist_backend="non_dist")(predicted, true)
    assert list(found) == NAMES
    assert all(map(same, found.values(), by_fractions(pairs)))


@needs("sklearn")
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_it_agrees_with_scikit_learn(offset: float) -> None:
    from sklearn import metrics

    random = np.random.default_rng(1)
    true = random.normal(offset, 1, 500)
    predicted = true + random.normal(0.3, 0.5, 500)
    expected = [
        metrics.mean_absolute_error(true, predicted),
        metrics.mean_squared_error(true, predicted),
        metrics.mean_squared_error(true, predicted) ** 0.5,
        metrics.r2_score(true, predicted),
        metrics.explained_variance_score(true, predicted),
    ]
    found = Regression(dist_backend="non_dist")(predicted, true)
    assert list(found.values()) == pytest.approx(expected, rel=1e-12)
    for same_labels, errors in (
        ([2.0] * 3, [0, 0, 0]),
        ([2.0] * 3, [1, 1, 1]),
        ([2.0] * 3, [0, 1, 2]),
    ):
        predicted = np.array(same_labels) + errors
        found = Regression(dist_backend="non_dist")(predicted, same_labels)
        assert found["r2"] == metrics.r2_score(same_labels, predicted)
        explained = metrics.explained_variance_score(same_labels, predicted)
        assert found["explained_variance"] == explained


def test_values_that_are_not_finite_follow_ieee_754() -> None:
    for predicted, true, error in (
        ([1.0, math.inf], [1.0, math.inf], math.nan),
        ([1.0, math.inf], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [1.0, -math.inf], math.inf),
    ):
        found = Regression(dist_backend="non_dist")(predicted, true)
        assert all(same(found[name], error) for name in NAMES[:3])
        assert all(math.isnan(found[name]) for name in NAMES[3:])
