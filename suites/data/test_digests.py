"""Equal elements have equal digests in every process, and other elements have others."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.data import (
    Elements,
    IncomparableError,
    digest_of,
    digests_of,
    digests_of_rows,
    snapshot,
    total,
)

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

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "1"},
        )

    def digest_of(self, value: Any) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(value, self.process.stdin)
        self.process.stdin.flush()
        return self.process.stdout.read(16)


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    found = OtherProcess()
    yield found
    found.process.communicate(timeout=60)


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


@settings(max_examples=30)
@given(ELEMENTS)
def test_an_element_has_one_digest_in_all_processes(other: OtherProcess, element: Any) -> None:
    assert other.digest_of(element) == digest_of(element)


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
    Sample("a", 1), Sample("a", 2), Sample("b", 1), int, len, range(3),
    range(4), bytearray(b"1"), Decimal(1), -0.0, 0.0, float("nan"), float("inf"), 2**70, -(2**70),
]  # fmt: skip


def test_values_that_look_alike_have_digests_of_their_own() -> None:
    digests = [digest_of(value) for value in ALL_DIFFERENT]
    for (i, one), (k, other) in itertools.combinations(enumerate(digests), 2):
        assert one != other, (ALL_DIFFERENT[i], ALL_DIFFERENT[k])


@pytest.mark.parametrize("value", [WithLock(), {"a": WithLock()}, (1, [Angry()])])
def test_what_cannot_be_taken_apart_has_no_digest(value: Any) -> None:
    with pytest.raises(IncomparableError, match="can't be pickled"):
        digest_of(value)


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


def elements(values: Any) -> Elements:
    found = Elements()
    for number, value in enumerate(values):
        found.add(number, snapshot(value))
    return found


@pytest.mark.parametrize("size", [0, 1, 5, 1023, 1024, 1500, 70_000])
def test_earlier_totals_are_those_of_shorter_streams(size: int) -> None:
    whole = elements(range(size))
    sums = whole.sums()
    assert whole.count == size
    assert len(sums) <= 2048
    assert size < 1024 or len(sums) >= 500
    for count in [*list(sums)[:2], *list(sums)[-2:]]:
        assert elements(range(count)).total() == sums[count]


ROWS = st.one_of(
    st.tuples(st.sampled_from(["f4", "f8", "u1", "i2", ">i4", "?", "U3", "c16", "O"]),
              st.sampled_from([(), (3,), (2, 5), (0,), (33,)])),
    st.just(("u1", (40_001,))),
)  # fmt: skip


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 40), st.data())
def test_a_row_has_one_digest_in_any_batch_and_another_with_any_other_bit(
    forms: list[Any], count: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(count)
    columns = tuple(
        random.integers(0, 100, (count, *shape)).astype(dtype) for dtype, shape in forms
    )
    whole = digests_of_rows(columns)
    cut = data.draw(st.integers(0, count))
    parts = [
        digests_of_rows(tuple(c[part] for c in columns)) for part in (slice(cut), slice(cut, None))
    ]
    assert np.array_equal(np.concatenate(parts), whole)
    row = data.draw(st.integers(0, count - 1))
    changed = next((column for column in columns if column.size), None)
    if changed is None:
        return
    flat = changed[row : row + 1].reshape(-1)
    place = data.draw(st.integers(0, flat.size - 1))
    kind, old = changed.dtype.kind, flat[place]
    new = old == 0 if kind == "b" else "zz" if kind == "U" else old + 1
    changed.reshape(count, -1)[row, place] = new
    assert [*np.flatnonzero(digests_of_rows(columns) != whole)] == [row]


@given(
    st.lists(st.one_of(ATOMS, ARRAYS, st.text(max_size=2000)), min_size=1, max_size=20),
    st.randoms(),
)
def test_a_total_depends_on_numbers_and_not_on_order(samples: list[Any], random: Any) -> None:
    ids = np.arange(len(samples))
    whole = total(ids, digests_of(samples))
    order = [*ids.tolist()]
    random.shuffle(order)
    assert total(np.array(order), digests_of([samples[i] for i in order])) == whole
    half = len(samples) // 2
    parts = (order[:half], order[half:])
    sums = [
        total(np.array(part, np.int64), digests_of([samples[i] for i in part])) for part in parts
    ]
    assert sum(sums) % 2**64 == whole
    assert total(ids + 1, digests_of(samples)) != whole


def test_neither_identity_nor_interning_counts() -> None:
    word = "".join(["la", "bel"])
    assert digest_of([word, word]) == digest_of(["label", "".join(["la", "bel"])])
    assert digest_of({"label": 1}) == digest_of({word: int("1")})


def test_what_else_a_process_has_digested_does_not_count(other: OtherProcess) -> None:
    digest_of({np.str_("only here"): 1})
    assert digest_of({"only here": 1}) == other.digest_of({"only here": 1})
