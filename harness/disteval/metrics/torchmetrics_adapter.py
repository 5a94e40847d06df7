"""Any torchmetrics metric over any backend, and no sample twice.

torchmetrics gathers its states by `torch.distributed` alone, with one collective or more for each.
Here they travel together as one object.
"""

from __future__ import annotations

import sys
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.errors import RankError, UsageError
from disteval.metrics.base import BaseMetric, check_collected, check_sizes
from disteval.metrics.tensors import length, pack, to_tensors, unpack

Metric = Any
"""A ``torchmetrics.Metric``."""


def from_torchmetrics(
    metric: Metric, dist_backend: str | BaseDistBackend | None = None
) -> BaseMetric:
    """Make a `BaseMetric` of a torchmetrics metric.

    The result is what the metric's own ``compute`` returns, on every rank. States are merged as
    torchmetrics merges them, but that ranks without samples are left out. So it is as exact as the
    metric: one that counts, or keeps its samples, does not depend on the world size; one that sums
    floats does in the last bits, and one that averages a state over ranks does not weigh them.

    Args:
        metric: It is copied, and stays as it is; the copy starts from nothing, on the same device.
        dist_backend: See `BaseMetric`.

    Raises:
        UsageError: It is not a ``torchmetrics.Metric``.
    """
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None or not isinstance(metric, torchmetrics.Metric):
        found = type(metric).__name__
        if torchmetrics is not None and isinstance(metric, torchmetrics.MetricCollection):
            found += "; give each metric of a collection by itself"
        raise UsageError(f"expected a torchmetrics.Metric, not a value of type {found}")
    return _TorchMetric(metric, dist_backend)


class _TorchMetric(BaseMetric):
    """See `from_torchmetrics`."""

    def __init__(self, metric: Metric, dist_backend: str | BaseDistBackend | None) -> None:
        self._metric = metric
        super().__init__(dist_backend=dist_backend)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; an empty one is passed over.

        Args:
            *args: What the metric's ``update`` takes, mostly predictions and labels. Arrays of any
                framework, and lists of numbers, become tensors on the metric's device. Samples are
                counted by the length of the first.
            **kwargs: The same, by name.
        """
        samples = next((length(value) for value in [*args, *kwargs.values()]), 1)
        if samples:
            metric = self._results.metric
            given = [to_tensors(value, metric.device) for value in args]
            named = {name: to_tensors(value, metric.device) for name, value in kwargs.items()}
            metric.update(*given, **named)
            self._results.samples += samples

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's samples with one collective; every rank must call it.

        What was added stays, and more can be.

        Args:
            size: Samples in the data set. A state can't lose samples again, so it must be all that
                were added; None takes what there is.

        Raises:
            UsageError: On every rank, when ``size`` is not what was added, or there are no samples.
            RankError: On every rank, when a rank's states can't travel.
        """
        mine: tuple[Any, str | None]
        try:
            mine = _pack_states(self._results.metric), None
        except Exception as error:  # the other ranks wait for word of it
            mine = None, f"{type(error).__name__}: {error}"
        shards = self.dist_backend.all_gather_object((size, self._results.samples, *mine))
        check_sizes([given for given, _, _, _ in shards])
        added = sum(samples for _, samples, _, _ in shards)
        for rank, (_, _, _, failure) in enumerate(shards):
            if failure is not None:
                raise RankError(rank, f"could not send {type(self._metric).__name__}: {failure}")
        if size is not None:
            check_collected(size, added)
            if size < added:
                raise UsageError(
                    f"size={size}, but all ranks together added {added} samples, and a "
                    f"torchmetrics metric can't drop any; leave padding out before add(), as "
                    f"disteval.evaluate does"
                )
        if not added:
            raise UsageError("no samples: add() was not called on any rank, or with empty batches")
        return self.compute_metric([states for _, samples, states, _ in shards if samples])

    def compute_metric(self, results: list[Any]) -> Any:
        """Merge the states of the ranks that have samples, and compute; on every rank."""
        merged = self._results.metric.clone()
        for metric, shards in zip(_metrics_in(merged), zip(*results, strict=True), strict=True):
            # Else it would sync again wherever torch.distributed happens to be initialised.
            metric.distributed_available_fn = _not_distributed
            metric._update_count = sum(count for count, _ in shards)
            for name, reduction in metric._reductions.items():
                states = [unpack(states[name], metric.device) for _, states in shards]
                setattr(metric, name, _merge(states, reduction))
        return merged.compute()

    def _fresh(self) -> _Added:
        metric = self._metric.clone()
        metric.reset()
        return _Added(metric)


class _Added:
    """A metric that was updated with so many samples."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.samples = 0


def _not_distributed() -> bool:
    return False


def _metrics_in(metric: Metric) -> list[Metric]:
    """Return the metric and those that it wraps: any of them may have states."""
    kind = sys.modules["torchmetrics"].Metric
    return [module for module in metric.modules() if isinstance(module, kind)]


def _merge(states: list[Any], reduction: Any) -> Any:
    """Merge one state of several ranks, as ``torchmetrics.Metric._sync_dist`` does."""
    if len(states) == 1:
        return states[0]
    if any(isinstance(state, list) for state in states):
        merged = [entry for s in states for entry in (s if isinstance(s, list) else [s])]
        return reduction(merged) if merged and reduction is not None else merged
    stacked = sys.modules["torch"].stack(states)
    return stacked if reduction is None else reduction(stacked)


def _pack_states(metric: Metric) -> list[tuple[int, dict[str, Any]]]:
    return [
        (found._update_count, {name: pack(getattr(found, name)) for name in found._reductions})
        for found in _metrics_in(metric)
    ]
