"""Rule 8.1: the evaluation on top."""

from __future__ import annotations

from typing import Any

import numpy as np

from disteval.conformance.bench import Bench
from disteval.conformance.rule import Trial, rule
from disteval.contract import BaseDistBackend
from disteval.metrics.accuracy import Accuracy
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import MetricGroup
from disteval.sharding import ShardPlan


@rule("8.1", "exactly once", draws="DATA_SETS")
def check_counting(bench: Bench) -> None:
    """Metrics over this backend count every sample once, and equal those of one process exactly.

    Usually: entries of an all-gather are in another order than that of the ranks, or empty
    lists are lost or skipped; rules 2.1 and 2.2 show it on smaller examples.
    """
    from disteval.conformance.drawing import DATA_SETS, each  # ranks need no Hypothesis

    def trial(task: tuple[int, str, bool, int], world: int) -> Trial:
        size = task[0]
        samples = np.arange(size)
        scores, labels = scores_and_labels(samples)
        best = (scores > scores[samples, labels, None]).sum(axis=1)
        ties = [(scores[i, : labels[i]] == scores[i, labels[i]]).sum() for i in range(size)]
        places = best + np.array(ties, dtype=int)
        right = {f"top{k}": int((places < k).sum()) for k in (1, 2)}
        accuracy = {key: count / size for key, count in right.items()} if size else None
        if accuracy is not None:
            accuracy |= {f"correct_{key}": count for key, count in right.items()} | {"size": size}
        example = "{} samples, {}, padded: {}, batches of {}".format(*task)
        return Trial([task] * world, [[list(range(size)), accuracy]] * world, example)

    each(bench, count_samples, DATA_SETS, trial)


class _Indices(BaseMetric):
    """A metric whose result is the list of counted samples."""

    def add(self, indices: Any) -> None:
        self._results.extend(int(index) for index in indices)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


def count_samples(backend: BaseDistBackend, task: tuple[int, str, bool, int]) -> list[Any]:
    """Count the samples of a data set with metrics over this backend, batch by batch."""
    size, mode, pad, batch_size = task
    plan = ShardPlan(size, backend.world_size, backend.rank, mode, pad)  # type: ignore[arg-type]
    collect: Any = "unzip" if mode == "strided" else "cat"
    indices = _Indices(dist_collect_mode=collect)
    accuracy = Accuracy((1, 2), counts=True, dist_collect_mode=collect)
    for start in range(0, len(plan), batch_size):
        batch = plan.indices[start : start + batch_size]
        indices.add(batch)
        accuracy.add(*scores_and_labels(batch))
    # In a group, both take three collectives instead of seven; of no samples there is no accuracy.
    metrics = {"indices": indices, "accuracy": accuracy} if size else {"indices": indices}
    found = MetricGroup(metrics, backend).compute(size)
    return [found["indices"], found.get("accuracy")]


def scores_and_labels(indices: Any) -> tuple[Any, Any]:
    """Return scores over four classes that are right, second or wrong for different samples."""
    labels = indices % 4
    scores = np.zeros((len(indices), 4))
    scores[np.arange(len(indices)), (labels + (indices % 3 == 0)) % 4] = 2
    scores[np.arange(len(indices)), (labels + (indices % 5 == 0)) % 4] += 1
    return scores, labels
