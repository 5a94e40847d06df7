"""Tensors and values beside them arrive unchanged, in memory of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics.tensors import length, pack, to_tensors, unpack

from suites.helpers.needs import framework, needs

torch = framework("torch")

pytestmark = needs("torch")

STATES = [
    torch.arange(6.0).reshape(2, 3).T,
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor([1.5, -2.0], dtype=torch.float16),
    torch.tensor([True, False]),
    torch.tensor(7, dtype=torch.uint8),
    torch.zeros(0, 3, dtype=torch.int64),
    torch.ones(2, requires_grad=True),
]


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if not isinstance(expected, torch.Tensor):
        return type(found) is type(expected) and bool(found == expected)
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("state", [*STATES, "a text", (1, "two"), None, [], [*STATES, "a", [1]]])
def test_a_state_arrives_as_it_was_sent(state: Any) -> None:
    packed = pack(state)
    assert "Tensor" not in repr(packed)
    assert same(unpack(packed, "cpu"), state)


def test_what_arrives_has_memory_of_its_own() -> None:
    state = torch.zeros(3)
    packed = pack([state])
    [first], [second] = unpack(packed, "cpu"), unpack(packed, "cpu")
    first += 1
    assert second.tolist() == state.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("value", "samples"),
    [
        ({}, 0), ({"boxes": [1, 2], "scores": [1, 2, 3]}, 2), ({"outer": {"inner": [1, 2, 3]}}, 3),
        ([], 0), ([[1], [2, 3]], 2), (({"boxes": 1},), 1), ("a text", 1), (5, 1), (None, 1),
        (np.zeros((3, 2)), 3), (np.zeros((0, 2)), 0), (np.float32(1), 1), (torch.zeros(4, 9), 4),
    ],
)  # fmt: skip
def test_samples_are_counted_by_the_first_axis(value: Any, samples: int) -> None:
    assert length(value) == samples


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], torch.int64), ((0.5, 1.0), torch.float64), ([[1], [2]], torch.int64),
        ([True], torch.bool), ((np.float32(1), np.float32(2)), torch.float32),
        (np.float16(1), torch.float16), (np.array([1, 2], np.uint8), torch.uint8),
        (np.array([1, 2], np.uint16), torch.int64), (np.array([[1]], np.uint32), torch.int64),
        (np.array([1], np.int16), torch.int16), (np.zeros((0, 2), np.float32), torch.float32),
    ],
)  # fmt: skip
def test_numbers_become_tensors(value: Any, dtype: Any) -> None:
    found = to_tensors(value, "cpu")
    assert found.dtype == dtype
    assert found.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize("value", [np.array([1, 2**63], np.uint64), [2**63], np.uint64(2**64 - 1)])
def test_a_number_that_int64_does_not_hold_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="does not hold"):
        to_tensors(value, "cpu")
    assert to_tensors(np.array([2**63 - 1], np.uint64), "cpu").tolist() == [2**63 - 1]


def test_what_holds_no_numbers_keeps_its_form_and_its_parts_become_tensors() -> None:
    given = {"texts": ["a", "b"], "boxes": [np.ones(2), "c"], "pair": (np.zeros(1), {"d": None})}
    found = to_tensors(given, "cpu")
    assert found["texts"] == ["a", "b"]
    assert same(found["boxes"], [torch.ones(2, dtype=torch.float64), "c"])
    assert isinstance(found["pair"], tuple)
    assert same(found["pair"][0], torch.zeros(1, dtype=torch.float64))
    assert found["pair"][1] == {"d": None}
    assert to_tensors([], "cpu") == []
    assert to_tensors(("a", 1), "cpu") == ("a", 1)


def test_a_tensor_that_is_kept_is_no_longer_the_callers() -> None:
    given = torch.zeros(2, requires_grad=True)
    found = to_tensors([given], "cpu")[0]
    assert not found.requires_grad
    with torch.no_grad():
        given += 1
    assert found.tolist() == [0, 0]
