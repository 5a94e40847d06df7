"""A sample may have several rows or none, and large sums are added as small ones are."""

from typing import Any

import numpy as np
import pytest
from disteval import Leases, evaluate
from disteval.metrics import ConfusionMatrix, Mean, MetricGroup, SampleRows
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values
from suites.metrics.cases import alone, losses
from suites.properties.cases import Entries

LENGTHS = np.array([2, 0, 3, 1, 5])
ROWS = np.split(losses[:11], np.cumsum(LENGTHS)[:-1])  # of five samples, of which one has none


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=4))
def test_a_sample_may_have_several_rows_or_none(shards: list[list[int]]) -> None:
    shards[0] = [4, 3, 2, 1, 0, *shards[0]]

    def rank(backend: ThreadsDist) -> Any:
        group = MetricGroup({"mean": Mean(), "rows": Entries()}, backend)
        for at in range(0, len(shards[backend.rank]), 3):
            ids = np.array(shards[backend.rank][at : at + 3])
            group.add(np.concatenate([ROWS[i] for i in ids]), ids=SampleRows(ids, LENGTHS[ids]))
        return group.compute(size=5)

    mean = alone(Mean(), (losses[:11],), {})
    for found in values(run_ranks(len(shards), rank)):
        assert found == {"mean": mean, "rows": losses[:11].tolist()}


def test_every_sample_may_have_as_many_rows() -> None:
    pictures = np.arange(24).reshape(3, 8) % 3

    def rank(backend: ThreadsDist) -> Any:
        matrix = ConfusionMatrix(3, dist_backend=backend)
        for i in (backend.rank, 2):
            matrix.add(pictures[i], pictures[i], ids=SampleRows([i], 8))
        return matrix.compute(size=3)["matrix"].tolist()

    assert values(run_ranks(2, rank)) == [np.diag([8, 8, 8]).tolist()] * 2


CLASSES = np.arange(10_000)


class ByColumns(ConfusionMatrix):
    """A confusion matrix whose sums lie column by column in memory."""

    def sums_of(self, column: Any) -> Any:
        return np.asfortranarray(super().sums_of(column))


@pytest.mark.parametrize("kind", [ConfusionMatrix, ByColumns])
def test_large_sums_are_added_whether_few_or_most_of_them_are_0(kind: Any) -> None:
    pairs = np.concatenate([CLASSES[:40], CLASSES, CLASSES[-30:]])  # a lease has 50 samples
    predicted, labels = pairs // 100, pairs % 100

    def rank(backend: ThreadsDist) -> Any:
        metrics = {"m": kind(100)}
        found = evaluate(
            lambda x: x, (predicted, labels), metrics, backend, 50, leases=Leases()
        ).metrics
        return found["m"]["matrix"]

    expected = alone(ConfusionMatrix(100), (predicted, labels), {})["matrix"]
    for found in values(run_ranks(2, rank)):
        assert (found == expected).all()
