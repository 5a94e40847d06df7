"""Results of metrics of any kind become JSON and rows of text, and none is lost or changed."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from disteval.report import values
from disteval.report.values import matrices, plain, rows, text_of

Pair = namedtuple("Pair", "low high")


@dataclass
class Interval:
    low: float
    high: float


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(2**62 + 1), 2**62 + 1),
        (np.bool_(True), True),
        (np.longdouble(0.5), 0.5),
        (np.array([[1, 2], [3, 4]], np.uint8), [[1, 2], [3, 4]]),
        (np.array(0.25), 0.25),
        ({1: {"a": (1, 2)}, "b": None}, {"1": {"a": [1, 2]}, "b": None}),
        ({1: "number", "1": "text"}, {"1": "number", "'1'": "text"}),
        (Pair(np.float64(0.1), 0.2), {"low": 0.1, "high": 0.2}),
        (Interval(0.1, 0.2), {"low": 0.1, "high": 0.2}),
        ([np.float16(0.5), "words", True], [0.5, "words", True]),
        (complex(1, 2), "(1+2j)"),
        (np.array(["a", "b"]), ["a", "b"]),
    ],
)
def test_a_result_of_any_kind_becomes_json_without_a_digit_lost(found: Any, expected: Any) -> None:
    made = plain(found)
    assert made == expected
    assert json.loads(json.dumps(made)) == expected
    for value in (made, *(made if isinstance(made, list) else ())):
        assert type(value) in (dict, list, str, bool, int, float, type(None))


def test_numbers_that_are_not_finite_stay_what_they_are() -> None:
    made = plain({"a": np.array([np.nan, np.inf]), "b": float("-inf")})
    assert [text_of(value) for value in (*made["a"], made["b"])] == ["nan", "inf", "-inf"]
    assert text_of(None) == "not a finite number"


def test_an_array_that_no_report_could_hold_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_VALUES", 5)
    assert plain(np.zeros((2, 3))) == (
        "an array of float64 of shape (2, 3), too large for a report"
    )


def test_every_value_has_a_row_with_the_way_to_it() -> None:
    found = plain({"f1": {"macro": 0.5, "classes": {"cat": 1 / 3}}, "lists": [[1], [2, 3]]})
    assert rows(found) == [
        ("f1  macro", "0.5"), ("f1  classes  cat", "0.333333"), ("lists  0", "1"),
        ("lists  1", "2, 3"),
    ]  # fmt: skip
    assert rows({"empty": {}, "none": []}) == [("empty", "0 values"), ("none", "no values")]


def test_a_small_matrix_is_a_table_and_a_large_one_is_measured() -> None:
    small, large = [[1, 20], [3, 4]], np.zeros((60, 60)).tolist()
    assert rows({"small": small, "large": large}) == [
        ("small", " 1 20\n 3  4"), ("large", "60 x 60 values"),
    ]  # fmt: skip
    assert matrices({"small": {"in": small}, "large": large}) == [
        ("small  in", [["1", "20"], ["3", "4"]])
    ]


def test_what_is_too_much_for_a_terminal_is_cut_and_said_so() -> None:
    many = {"each": {str(k): k for k in range(1000)}}
    *shown, last = rows(many)
    assert (len(shown), last[0]) == (100, "each")
    assert "--json" in last[1]
    assert rows({"flat": list(range(1000))}) == [
        ("flat", ", ".join(map(str, range(20))) + ", … (1000 values)")
    ]
    deep: Any = 1
    for _ in range(900):
        deep = [deep, []]
    [*_, (_, text)] = rows({"deep": deep})
    assert text
