"""Results of metrics of any kind become JSON and rows of text, and none is lost or changed."""

import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Task
from disteval.metrics import BaseMetric

from suites.helpers.command import invoke

Pair = namedtuple("Pair", "low high")


@dataclass
class Interval:
    low: float
    high: float


SMALL = [[1, 20], [3, 4]]
KINDS: dict[str, tuple[Any, Any]] = {
    "float32": (np.float32(0.1), float(np.float32(0.1))),
    "int64": (np.int64(2**62 + 1), 2**62 + 1),
    "bool": (np.bool_(True), True),
    "longdouble": (np.longdouble(0.5), 0.5),
    "bytes": (np.array([[1, 2], [3, 4]], np.uint8), [[1, 2], [3, 4]]),
    "scalar": (np.array(0.25), 0.25),
    "nested": ({1: {"a": (1, 2)}, "b": None}, {"1": {"a": [1, 2]}, "b": None}),
    "same names": ({1: "number", "1": "text"}, {"1": "number", "'1'": "text"}),
    "pair": (Pair(np.float64(0.1), 0.2), {"low": 0.1, "high": 0.2}),
    "interval": (Interval(0.1, 0.2), {"low": 0.1, "high": 0.2}),
    "mixed": ([np.float16(0.5), "words", True], [0.5, "words", True]),
    "complex": (complex(1, 2), "(1+2j)"),
    "texts": (np.array(["a", "b"]), ["a", "b"]),
    "infinite": (np.array([np.nan, np.inf, -np.inf]), ["NaN", "Infinity", "-Infinity"]),
    "small": (SMALL, SMALL),
    "large": (np.zeros((60, 60)), np.zeros((60, 60)).tolist()),
    "long": (list(range(1000)), list(range(1000))),
}
"""Results of a metric, and what a report has of each."""


class Results(BaseMetric):
    """A metric whose result has values of every kind."""

    def add(self, outputs: Any, _labels: Any, ids: Any = None) -> None:
        """Add the outputs of a batch."""
        self._extend(list(outputs), ids)

    def compute_metric(self, results: Any) -> Any:
        """Return all results."""
        return {name: found for name, (found, _) in KINDS.items()}


def task() -> Task:
    """Return a task of four samples with that metric."""
    samples = (np.arange(4), np.arange(4))
    return Task(samples=samples, predict=lambda batch: batch, metrics={"all": Results()})


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The results in the report, and what is printed, with single spaces."""
    report: Path = tmp_path_factory.mktemp("values") / "r.json"
    words = ("suites.report.test_values:task", "--backend=threads", "--world-size=2")
    done = invoke("eval", *words, f"--json={report}")
    assert done.exit_code == 0, done.stderr
    return json.loads(report.read_text())["metrics"]["all"], " ".join(done.stdout.split())


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_any_kind_becomes_json_without_a_digit_lost(evaluated: Any, kind: str) -> None:
    assert evaluated[0][kind] == KINDS[kind][1]


def test_every_value_has_a_row_with_the_way_to_it(evaluated: Any) -> None:
    for row in (
        "all pair low", "all nested 1 a", "all float32", "all small", "60 x 60", "(1000 values)",
    ):  # fmt: skip
        assert row in evaluated[1], evaluated[1]
