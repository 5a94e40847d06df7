"""Equal elements have equal digests in every process, and other elements have others."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from disteval.data.digests import RunningDigest, digest_of
from hypothesis import given
from hypothesis import strategies as st

CHILD = """
import pickle, sys
import numpy as np
from disteval.data.digests import digest_of

def varied(value):
    # Equal, but in other objects, in another order where that does not count, in other memory.
    if type(value) is dict:
        return {varied(k): varied(v) for k, v in reversed(value.items())}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([varied(part) for part in value])
    if type(value) is str:
        return "".join(list(value))
    if type(value) is np.ndarray:
        return np.repeat(value, 2, axis=0)[::2]
    return value

while True:
    try:
        value = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    sys.stdout.buffer.write(digest_of(varied(value)))
    sys.stdout.buffer.flush()
"""


class OtherProcess:
    """A process with another hash seed, which returns digests of values that it varies."""

    def __init__(self, seed: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )

    def digest_of(self, value: Any) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(value, self.process.stdin)
        self.process.stdin.flush()
        return self.process.stdout.read(16)


@pytest.fixture(scope="module")
def others() -> Iterator[list[OtherProcess]]:
    found = [OtherProcess(seed) for seed in (1, 2)]
    yield found
    for other in found:
        other.process.communicate(timeout=60)


ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.complex_numbers(), st.sampled_from(["label", "text", "x", "y"]),
)  # fmt: skip
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple), st.frozensets(inner, max_size=4)
    ),
    max_leaves=6,
)
ARRAYS = st.builds(
    lambda dtype, shape: np.arange(np.prod(shape)).astype(dtype).reshape(shape),
    st.sampled_from(["i8", "f4", "u1", ">i2", "?", "U5", "S3", "c16", "M8[s]", "O", "i4,f8"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
)
OBJECTS = st.sampled_from(
    [
        np.float32(0.1), np.int64(3), np.str_("a"), np.datetime64("2020-01-01"), Decimal("1.50"),
        Fraction(1, 3), datetime(2020, 1, 1, tzinfo=timezone.utc), PurePosixPath("a/b"), range(3),
        SimpleNamespace(names={"a", "b", "c"}), UserDict(b=1, a=[1]), OrderedDict(a=1, b=2),
        Counter("abca"), defaultdict(list, a=[1]), bytearray(b"abc"), len, Decimal,
        functools.partial(int, base=2), np.zeros(2000), np.random.default_rng(5),
    ]
)  # fmt: skip
ELEMENTS = st.recursive(
    st.one_of(ATOMS, ARRAYS, OBJECTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=5),
    ),
    max_leaves=12,
)


@given(ELEMENTS)
def test_an_element_has_one_digest_in_all_processes(
    others: list[OtherProcess], element: Any
) -> None:
    mine = digest_of(element)
    assert [other.digest_of(element) for other in others] == [mine, mine]


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal with all types, as their representations show."""
    return repr(one) == repr(other)


SIMPLE = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
    max_leaves=5,
)


@given(SIMPLE, SIMPLE)
def test_other_elements_have_other_digests(one: Any, other: Any) -> None:
    assert (digest_of(one) == digest_of(other)) == same(one, other)


Point = namedtuple("Point", "x y")


@dataclass
class Sample:
    text: str
    label: int


class WithLock:
    """An object that can't be pickled."""

    def __init__(self) -> None:
        self.numbers = (i for i in range(3))


class Angry:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MemoryError("not me")


ALL_DIFFERENT = [
    1, 1.0, True, "1", b"1", 1 + 0j, None, (), [], {}, set(), frozenset(), (1,), [1], {1}, ((1,),),
    [[1]], {"a": 1}, {"a": 1.0}, {1: "a"}, {("a",): 1}, {"a": {"b": 1}}, ("dict", ("a",), (1,)),
    np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros((1, 3)), np.zeros(3, np.int64),
    np.zeros(3, "f4,f8"), np.zeros(3, [("a", "f4"), ("b", "f8")]), np.zeros(3, "f8,f4"),
    np.zeros(2000), np.zeros((2, 1000)), np.zeros(2000, np.int64), [0.0] * 3, np.float64(0),
    np.array([{"a": 1}], object), np.array([{"a": 2}], object), Point(1, 2), Point(2, 1), (1, 2),
    Sample("a", 1), Sample("a", 2), Sample("b", 1), WithLock(), Angry(), int, len, range(3),
    range(4), bytearray(b"1"), Decimal(1), -0.0, 0.0, float("nan"), float("inf"), 2**70, -(2**70),
]  # fmt: skip


def test_values_that_look_alike_have_digests_of_their_own() -> None:
    digests = [digest_of(value) for value in ALL_DIFFERENT]
    for (i, one), (k, other) in itertools.combinations(enumerate(digests), 2):
        assert one != other, (ALL_DIFFERENT[i], ALL_DIFFERENT[k])


def test_what_cannot_be_taken_apart_counts_by_its_type() -> None:
    assert digest_of(WithLock()) == digest_of(WithLock())
    assert digest_of({"a": WithLock()}) == digest_of({"a": WithLock()})
    assert digest_of(Angry()) == digest_of(Angry())


def test_an_element_may_contain_itself_and_be_deep() -> None:
    def looped() -> Any:
        found: list[Any] = [1, 2]
        found += [found, found, {"me": found}]
        return found

    assert digest_of(looped()) == digest_of(looped())
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    assert digest_of(deep) == digest_of([deep]) != digest_of((deep,))  # only so deep does it count


@given(st.lists(st.integers(), max_size=40), st.integers(0, 39))
def test_what_becomes_of_an_element_later_does_not_count(numbers: list[int], change: int) -> None:
    one, other = RunningDigest(), RunningDigest()
    for number in numbers:
        kept: Any = {"x": [number], "y": np.array([number])}
        one.add({"x": [number], "y": np.array([number])})
        other.add(kept)
        kept["x"][0] = kept["y"][0] = change
    assert one.value() == other.value()


@pytest.mark.parametrize("size", [0, 1, 5, 1023, 1024, 1500, 70_000])
def test_earlier_digests_are_those_of_shorter_streams(size: int) -> None:
    whole = RunningDigest()
    for number in range(size):
        whole.add(number)
    steps = whole.steps()
    assert whole.count == size
    assert len(steps) <= 1024
    assert size < 1024 or len(steps) >= 500
    for count in [*list(steps)[:2], *list(steps)[-2:]]:
        shorter = RunningDigest()
        for number in range(count):
            shorter.add(number)
        assert shorter.value() == steps[count]


def test_neither_identity_nor_interning_counts() -> None:
    word = "".join(["la", "bel"])
    assert digest_of([word, word]) == digest_of(["label", "".join(["la", "bel"])])
    assert digest_of({"label": 1}) == digest_of({word: int("1")})


def test_what_else_a_process_has_digested_does_not_count(others: list[OtherProcess]) -> None:
    digest_of({np.str_("only here"): 1})
    assert digest_of({"only here": 1}) == others[0].digest_of({"only here": 1})
