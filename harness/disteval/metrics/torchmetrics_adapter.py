"""Any torchmetrics metric over any backend.

torchmetrics gathers its states over `torch.distributed` only, with one collective or more for each.
Here all states travel together, as one object.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from disteval.contract import BaseDistBackend
from disteval.coverage import Counted, check_once
from disteval.errors import RankError, UsageError, describe_error
from disteval.metrics.base import BaseMetric, check_collected, check_sizes, no_samples
from disteval.metrics.ids import check_all_or_none
from disteval.metrics.tensors import length, pack, to_tensors, unpack

Metric = Any
"""A ``torchmetrics.Metric``."""


def from_torchmetrics(
    metric: Metric, dist_backend: str | BaseDistBackend | None = None
) -> BaseMetric:
    """Make a `BaseMetric` of a torchmetrics metric.

    The result is the value of the metric's own ``compute``, on every rank. States are merged as
    torchmetrics merges them, except that ranks without samples are left out. A metric that counts,
    or keeps its samples, gives the same result at any world size; one that sums floats differs in
    the last bits; and one that averages a state over ranks gives every rank the same weight.

    A state can't drop a sample again. With ids, as `BaseMetric.add` takes them, ``compute`` checks
    instead that each sample was added once, and names those that were not.

    Args:
        metric: A ``torchmetrics.Metric``. It is copied and reset; the original does not change.
        dist_backend: See `BaseMetric`.

    Raises:
        UsageError: ``metric`` is not a ``torchmetrics.Metric``.
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

    uses_ids: ClassVar[bool] = False

    def __init__(self, metric: Metric, dist_backend: str | BaseDistBackend | None) -> None:
        self._metric = metric
        super().__init__(dist_backend=dist_backend)

    def add(self, *args: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch; an empty one is ignored.

        Args:
            *args: The arguments of the metric's ``update``, mostly predictions and labels. Arrays
                of any framework, and lists of numbers, become tensors on the metric's device. The
                length of the first argument is the number of samples.
            ids: The samples' global numbers, see `BaseMetric.add`.
            **kwargs: More arguments of ``update``.
        """
        samples = next((length(value) for value in [*args, *kwargs.values()]), 1)
        checked = self._ids.check(ids, samples, self._results.samples)
        if samples:
            metric = self._results.metric
            given = [to_tensors(value, metric.device) for value in args]
            named = {name: to_tensors(value, metric.device) for name, value in kwargs.items()}
            metric.update(*given, **named)
            self._results.samples += samples
        self._ids.add(checked)

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's samples with one collective; every rank must call it.

        Samples that were added stay, and more can be added.

        Args:
            size: The samples in the data set. Padding can't be taken out of a state again, so all
                ranks together must have added just as many; with ids, each of these samples once.
                None skips this check.

        Raises:
            UsageError: On every rank, when ``size`` is not the number of samples that were added,
                or there are no samples.
            CoverageError: On every rank, when there are ids, and a sample was added twice, is
                missing or is not in the data set.
            RankError: On every rank, when a rank's states can't be sent.
        """
        mine: tuple[Any, str | None]
        try:
            mine = _pack_states(self._results.metric), None
        except Exception as error:  # the other ranks wait in the collective
            mine = None, describe_error(error)
        sent = (self._ids.certificate(), size, self._results.samples, *mine)
        backend = self.dist_backend
        shards = backend.all_gather_object(sent)
        check_sizes([given for _, given, _, _, _ in shards])
        lengths = [samples for _, _, samples, _, _ in shards]
        added = sum(lengths)
        for rank, (*_, failure) in enumerate(shards):
            if failure is not None:
                raise RankError(rank, f"could not send {type(self._metric).__name__}: {failure}")
        proofs = [certificate for certificate, *_ in shards]
        if check_all_or_none(lengths, proofs):
            counted = Counted(self._ids.all())
            check_once([proof for proof in proofs if proof], counted, size, backend)
            size = None
        check_collected(size, added)
        if size is not None and size < added:
            raise UsageError(
                f"size={size}, but all ranks together added {added} samples, and a torchmetrics "
                f"metric can't drop any; leave padding out before add(), as disteval.evaluate does"
            )
        if not added:
            raise no_samples()
        return self.compute_metric([states for _, _, samples, states, _ in shards if samples])

    def compute_metric(self, results: list[Any]) -> Any:
        """Merge the states of the ranks that have samples, and compute on every rank."""
        merged = self._results.metric.clone()
        for metric, shards in zip(_metrics_in(merged), zip(*results, strict=True), strict=True):
            # Else the metric would gather again if torch.distributed is initialised.
            metric.distributed_available_fn = lambda: False
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
    """A metric, and the number of samples that it was updated with."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.samples = 0


def _metrics_in(metric: Metric) -> list[Metric]:
    """Return the metric and all metrics that it wraps; any of them may have states."""
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
