"""A ledger keeps every bit of what metrics have added, and reading one never runs code."""

import math
import os
import pickle
import struct
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import HarnessError, Leases, UsageError, evaluate
from disteval.metrics import BaseMetric
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from suites.helpers.ledger import Ledger, Part, certify, dumps, loads, packed, packed_ids
from suites.helpers.pickles import Calls
from suites.helpers.thread_world import run_ranks

pytestmark = pytest.mark.usefixtures("without_canary")

SIZE = 12
SAMPLES = np.arange(SIZE)


class Pair(NamedTuple):
    """An entry of a metric."""

    one: int
    other: tuple[float, ...]


@dataclass(frozen=True)
class Record:
    """Another one."""

    name: str
    value: Any = None


NANS = st.integers(0, (1 << 64) - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits)))
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(-(1 << 200), 1 << 200) | st.floats()
    | NANS.map(lambda found: found[0]) | st.complex_numbers() | st.binary() | st.text()
    | st.text(st.characters(codec=None)) | st.binary().map(bytearray)
    | arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0))
    | arrays.arrays(np.float32, (3, 4)).map(np.asfortranarray)
    | arrays.arrays(arrays.scalar_dtypes(), ()).map(lambda array: array[()])
    | st.lists(st.integers() | st.floats(), max_size=3).map(lambda found: np.array([*found, None]))
)  # fmt: skip
HASHABLE = st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(HASHABLE, inner)
        | st.sets(HASHABLE) | st.frozensets(HASHABLE) | st.lists(HASHABLE).map(Counter)
        | st.builds(Pair, inner, inner) | st.builds(Record, st.text(), inner)
    ),
    max_leaves=20,
)  # fmt: skip


def types_in(value: Any) -> Any:
    """Return the types of a value and of all that it holds, in order."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.flags.f_contiguous, value.flags.writeable
    if isinstance(value, dict):
        return type(value), [(types_in(key), types_in(each)) for key, each in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [types_in(each) for each in value]
    return (type(value), types_in(value.value)) if isinstance(value, Record) else type(value)


@settings(deadline=None)
@given(VALUES)
def test_values_keep_their_types_and_all_bits(value: Any) -> None:
    again = loads(dumps(value))
    assert types_in(again) == types_in(value)
    # Of sets the order is not kept.
    assert sorted(dumps(again)) == sorted(dumps(value))


@settings(deadline=None)
@given(st.binary() | VALUES.map(dumps), st.data())
def test_damaged_bytes_are_refused_or_another_value(data: bytes, drawn: st.DataObject) -> None:
    at = drawn.draw(st.integers(0, len(data)))
    damaged = data[:at] + drawn.draw(st.binary(max_size=3)) + data[at + 1 :]
    try:
        loads(damaged)
    except ValueError as error:
        assert str(error)


def sealed(data: bytes) -> bytes:
    """Return a record of a ledger with these bytes."""
    return struct.pack("<Q16s", len(data), blake2b(data, digest_size=16).digest()) + data


def part(states: bytes) -> Part:
    ids = np.arange(4)
    return Part(0, (packed_ids(ids),), certify(ids), states)


def record(data: bytes) -> Any:
    return lambda found: found.write_bytes(found.read_bytes() + sealed(data))


def version_3(pickled: bytes) -> Any:
    return lambda found: found.write_bytes(b"disteval ledger 3\n" + sealed(pickled))


CASES = {
    "a record is a pickle": record,
    "a record of an earlier version is a pickle": version_3,
    "states of a part": lambda code: record(dumps(("part", part(b"p" + code)))),
    "states of another type": lambda code: record(dumps(("part", part(bytearray(b"p" + code))))),  # type: ignore[arg-type]
    "the result": lambda code: record(dumps(("result", b"p" + code))),
    "the settings": lambda code: record(dumps(("settings", code))),
    "a record of another kind": lambda code: record(dumps(("code", code))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("leases", [None, Leases()])
def test_no_file_of_a_ledger_runs_code(case: str, leases: Any, tmp_path: Path) -> None:
    """With the files of a stranger beside it, as the journal of a database that once was one."""
    folder, ran = tmp_path / "ledger", tmp_path / "ran"

    def once() -> Any:
        metrics = {"entries": Entries(lambda number: number)}
        return evaluate(abs, SAMPLES, metrics, "non_dist", 4, leases=leases, ledger=folder)

    once()
    pickled = pickle.dumps(Calls(os.mkdir, str(ran)))
    (found,) = folder.glob("ledger-*.log")
    CASES[case](pickled)(found)
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        (folder / name).write_bytes(pickled)
    with pytest.raises(UsageError, match=str(found)):
        once()
    assert not ran.exists()
    pickle.loads(pickled)
    assert ran.exists()  # it would have


class Entries(BaseMetric):
    """All entries, which a function makes of the samples' numbers."""

    uses_ids = True

    def __init__(self, make: Any) -> None:
        super().__init__()
        self._make = make

    def add(self, outputs: Any, *, ids: Any = None) -> None:
        self._extend([self._make(int(number)) for number in outputs], ids)

    def compute_metric(self, results: list[Any]) -> list[Any]:
        return [*results]


class Opaque:
    """An entry that no ledger keeps."""


def entry(number: int) -> list[Any]:
    """Return an entry with a value of each kind."""
    (nan,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | number))
    values = [nan, 1 << 70 + number, bytes([number]), np.full((2, number), number, ">f4")]
    records = [Pair(number, (math.inf, -0.0)), Record(str(number), (number, {number}))]
    return [*values, *records, {"a": [None, True, number], (1, 2): {}}]


@pytest.mark.parametrize("leases", [None, Leases()])
def test_entries_of_a_metric_are_the_same_after_an_interrupt(leases: Any, tmp_path: Path) -> None:
    def once(calls: int, ledger: Path | None) -> Any:
        left = iter(range(calls))

        def predict(batch: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return batch

        metrics = {"entries": Entries(entry)}
        return evaluate(predict, SAMPLES, metrics, "non_dist", 2, leases=leases, ledger=ledger)

    with pytest.raises(KeyboardInterrupt):
        once(3, tmp_path / "ledger")
    expected = once(6, None).metrics["entries"]
    for _ in range(2):  # the second time there is a result already
        found = once(6, tmp_path / "ledger")
        assert found.stored > 0
        assert types_in(found.metrics["entries"]) == types_in(expected)
        assert dumps(found.metrics["entries"]) == dumps(expected)


@pytest.mark.parametrize("leases", [None, Leases()])
@pytest.mark.parametrize("keeps", ["ledger", "predictions"])
def test_a_metric_that_no_ledger_keeps_is_refused_at_its_first_batch(
    keeps: str, leases: Any, tmp_path: Path
) -> None:
    def rank(backend: Any, **places: Any) -> Any:
        calls = 0

        def predict(batch: Any) -> Any:
            nonlocal calls
            calls += 1
            return batch

        metrics = {"odd": Entries(lambda number: Opaque())}
        try:
            found = evaluate(predict, SAMPLES, metrics, backend, 1, leases=leases, **places)
        except HarnessError as error:
            return str(error), calls
        return len(found.metrics["odd"]), calls

    for told, calls in run_ranks(2, lambda backend: rank(backend, **{keeps: tmp_path / "f"})):  # type: ignore[misc]
        assert calls <= 2
        assert "'odd'" in told and "Opaque" in told
    assert [found for found, _ in run_ranks(2, rank)] == [SIZE, SIZE]  # type: ignore[misc]


def test_a_result_that_no_ledger_keeps_is_computed_again(tmp_path: Path) -> None:
    class Odd(Entries):
        def compute_metric(self, results: list[Any]) -> Any:
            return Opaque()

    for _ in range(2):
        metrics = {"odd": Odd(int)}
        found = evaluate(abs, SAMPLES, metrics, "non_dist", 2, ledger=tmp_path)
        assert isinstance(found.metrics["odd"], Opaque)
    assert found.stored == SIZE


def test_a_ledger_takes_no_states_that_are_pickles(tmp_path: Path) -> None:
    found = Ledger(tmp_path, {})
    with pytest.raises(UsageError):
        found.commit(part(packed(Opaque())))
    found.close()
    assert Ledger(tmp_path, {}).stored == []
