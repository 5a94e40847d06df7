"""Each class of torchmetrics has the result of one process, or docs/metrics.md lists it."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import from_torchmetrics
from disteval_backends.threads_dist import ThreadsDist

from suites.arrays.torchmetrics_rows import ROWS, SAMPLES, VARIANTS, Row
from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

pytestmark = needs("torch", "torchmetrics")

WORLDS = ([[1, 4], [1, 1, 7]], [[2, 4], [], [5, 1, 2]])
"""The lengths of the batches of each rank, for worlds of two ranks and of three."""


@pytest.fixture
def listed() -> dict[str, list[str]]:
    """Return the classes that the page lists, by the first word of their row."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    if not page.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    found: dict[str, list[str]] = {"Refused": [], "Batches": [], "Untried": []}
    for name, classes in re.findall(
        r"^\| (\w+)[\w ]* \| (`\w+\.\w+`.*?) \|", page.read_text(), re.M
    ):
        found[name] += re.findall(r"`(.+?)`", classes)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [*ROWS, *VARIANTS], ids=str)
def test_a_class_has_the_result_of_one_process_or_the_page_lists_it(
    row: Row, tm: Any, listed: dict[str, list[str]]
) -> None:
    columns = row.columns(np.random.default_rng(0))
    # No rank has the samples of a whole batch of one process.
    order = np.random.default_rng(1).permutation(SAMPLES)
    whole = _alone(row, columns, [np.arange(SAMPLES)])
    exceptions = set()
    for world in WORLDS:
        cuts = np.cumsum([length for rank in world for length in rank])[:-1]
        batches = iter(np.split(order, cuts))
        shares = [[next(batches) for _ in rank] for rank in world]

        def rank(backend: ThreadsDist, shares: Any = shares) -> Any:
            metric = from_torchmetrics(row.make(), backend)
            for batch in shares[backend.rank]:
                metric.add(*_taken(columns, batch), ids=batch)
            return metric.compute(SAMPLES)

        outcomes = run_ranks(len(world), rank)
        if all(isinstance(outcome, UsageError) for outcome in outcomes):
            exceptions.add("Refused")
            continue
        expected = whole
        if not all(_close(found, whole) for found in values(outcomes)):
            exceptions.add("Batches")
            expected = _alone(row, columns, [batch for share in shares for batch in share])
        for found in values(outcomes):
            assert _close(found, expected)
    assert exceptions == {name for name in ("Refused", "Batches") if row.name in listed[name]}


def test_every_public_class_is_tried_or_the_page_says_why_not(
    tm: Any, listed: dict[str, list[str]]
) -> None:
    if not tm.__version__.startswith("1.9."):
        pytest.skip(f"the page is about torchmetrics 1.9, and this is {tm.__version__}")
    rows = {row.name for row in ROWS} | {"detection.MeanAveragePrecision"}  # test_detection.py
    found = set()
    for module in {name.partition(".")[0] for name in rows | {*listed["Untried"]}}:
        for name, member in vars(importlib.import_module(f"torchmetrics.{module}")).items():
            if isinstance(member, type) and issubclass(member, tm.Metric):
                dispatches = any(
                    b.__name__ == "_ClassificationTaskWrapper" for b in member.__bases__
                )
                found |= set() if dispatches else {f"{module}.{name}"}
    bases = {"aggregation.BaseAggregator", "aggregation.Metric", "aggregation.Running"}
    bases.add("wrappers.MetricInputTransformer")
    assert found - bases - rows <= {*listed["Untried"]}  # of some, the class needs its library
    assert {*listed["Refused"], *listed["Batches"]} <= rows


def _alone(row: Row, columns: tuple[Any, ...], batches: list[Any]) -> Any:
    metric = row.make()
    for batch in batches:
        metric.update(*map(_tensors, _taken(columns, batch)))
    return metric.compute()


def _tensors(column: Any) -> Any:
    if isinstance(column, dict):
        return {key: _tensors(part) for key, part in column.items()}
    return framework("torch").tensor(column) if isinstance(column, np.ndarray) else column


def _taken(columns: tuple[Any, ...], batch: Any) -> list[Any]:
    def take(column: Any) -> Any:
        if isinstance(column, dict):
            return {key: take(part) for key, part in column.items()}
        return [column[i] for i in batch] if isinstance(column, list) else column[batch]

    return [take(column) for column in columns]


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and np.allclose(one, other, 1e-4, 1e-6, equal_nan=True)
