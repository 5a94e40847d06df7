"""Sums of floats are exact: against fractions, in any parts, up to the ends of float64's range."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics.exact import exact_mean, exact_sum, float64_of
from hypothesis import given
from hypothesis import strategies as st

MAX, TINY, SUBNORMAL = np.finfo(np.float64).max, np.finfo(np.float64).tiny, 5e-324
NAMED = [0.0, -0.0, MAX, -MAX, TINY, -TINY, SUBNORMAL, -SUBNORMAL, 1.0, 1e16, -1e16, 0.1]

finite = st.sampled_from(NAMED) | st.floats(allow_nan=False, allow_infinity=False)
# Few of them at a time, so that most sums have none.
special = st.sampled_from([math.nan, math.inf, -math.inf])


def mean_of(values: list[float]) -> float:
    """Return the mean by fractions, rounded once; by IEEE 754's rules with NaN and infinities."""
    odd = [value for value in values if not math.isfinite(value)]
    if odd:
        return math.fsum(odd) if len(set(odd)) == 1 else math.nan
    return float(sum(map(Fraction, values)) / len(values))


def same(found: float, expected: float) -> bool:
    return found == expected or (math.isnan(found) and math.isnan(expected))


@given(st.lists(finite, max_size=40))
def test_the_sum_is_that_of_fractions(values: list[float]) -> None:
    total, *counts = exact_sum(np.array(values))
    assert Fraction(total, 2**1074) == sum(map(Fraction, values))
    assert counts == [0, 0, 0]
    assert all(type(part) is int for part in exact_sum(np.array(values)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("place", range(1, 53))
def test_what_large_values_leave_of_each_other_is_found(place: int, sign: float) -> None:
    total, *_ = exact_sum(sign * np.array([1 + 2.0**-place, -1.0]))
    assert Fraction(total, 2**1074) == sign * Fraction(1, 2**place)


@given(st.lists(finite, min_size=1, max_size=40), st.lists(special, max_size=2), st.data())
def test_the_mean_is_rounded_once(
    values: list[float], odd: list[float], data: st.DataObject
) -> None:
    values = data.draw(st.permutations(values + odd))
    found = exact_mean(exact_sum(np.array(values)), len(values))
    assert same(found, mean_of(values))


@given(st.lists(finite | special, max_size=30), st.integers(0, 30))
def test_parts_add_and_subtract(values: list[float], at: int) -> None:
    array = np.array(values)
    whole, first, rest = exact_sum(array), exact_sum(array[:at]), exact_sum(array[at:])
    assert (first + rest).tolist() == whole.tolist()
    assert (whole - rest).tolist() == first.tolist()


@pytest.mark.parametrize("value", [MAX, -MAX, 1.0 + 2.0**-52, -1.0 - 2.0**-52, SUBNORMAL])
def test_very_many_values_of_one_exponent_are_exact(value: float) -> None:
    size = (1 << 20) + 1
    sums = exact_sum(np.full(size, value))
    assert Fraction(sums[0], 2**1074) == size * Fraction(value)
    assert exact_mean(sums, size) == value


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, np.bool_])
def test_shorter_numbers_are_converted_exactly(dtype: Any) -> None:
    values = np.array([0, 1, 1, 0], dtype=dtype) / dtype(3) if dtype != np.bool_ else [True, False]
    expected = Fraction(sum(Fraction(float(value)) for value in values))
    assert Fraction(exact_sum(np.asarray(values))[0], 2**1074) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_a_quotient_that_float64_can_not_hold_is_infinite(sign: int) -> None:
    sums = exact_sum(np.full(3, sign * MAX))  # as of three documents, whose bytes are divided by
    assert (exact_mean(sums, 1), exact_mean(sums, 3)) == (sign * math.inf, sign * MAX)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)])
def test_integers_that_float64_may_not_hold_are_refused(number: int) -> None:
    with pytest.raises(UsageError, match=rf"row 1 .*{number}"):
        float64_of(np.array([0, number, 2**53 + 5]), "values")
    with pytest.raises(UsageError, match=f"row 0 .*{2**64 - 1}"):
        float64_of(np.array([2**64 - 1], dtype=np.uint64), "values")
    assert float64_of(np.array([2**53, -(2**53)]), "values").tolist() == [2.0**53, -(2.0**53)]


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="longdouble is float64 here")
def test_longer_floats_are_refused() -> None:
    with pytest.raises(UsageError, match=r"float\d+"):
        float64_of(np.zeros(2, dtype=np.longdouble), "values")
