"""Any torchmetrics metric over any backend.

torchmetrics gathers its states over `torch.distributed` only, with one collective or more for each.
Here all states travel together, as one object.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from disteval.contract import BaseDistBackend
from disteval.coverage import Counted, check_once
from disteval.errors import RankError, UsageError, describe_error
from disteval.metrics.arrays import kind_of
from disteval.metrics.base import (
    BaseMetric,
    check_collected,
    describe_settings,
    no_samples,
)
from disteval.metrics.ids import check_all_or_none
from disteval.metrics.tensors import length, pack, to_tensors, unpack

Metric = Any
"""A ``torchmetrics.Metric``."""

_REFUSED = {
    "BootStrapper": "draws resamples on each rank by itself",
    "InceptionScore": "divides the samples at random in compute, so each rank has another result",
    "KernelInceptionDistance": "draws samples in compute, so each rank has another result",
    "MinMaxMetric": "remembers the results of earlier calls of compute outside its states",
    "Running": "keeps the last batches, and ranks have no last batch in common",
}
"""Classes of torchmetrics that can't have the result of one process on several ranks, and why."""

_OWN = ("_cache", "_computed", "_forward_cache", "_is_synced", "_update_count")
"""Attributes in which ``torchmetrics.Metric`` itself keeps where it is."""


def from_torchmetrics(
    metric: Metric, dist_backend: str | BaseDistBackend | None = None
) -> BaseMetric:
    """Make a `BaseMetric` of a torchmetrics metric.

    The result is the value of the metric's own ``compute``, on every rank. States are merged as
    torchmetrics merges them, except that ranks without samples are left out. A metric that counts,
    or keeps its samples, gives the same result at any world size; one that sums floats differs in
    the last bits. Values of single samples, as of ``reduction="none"``, come rank by rank. The page
    ``docs/torchmetrics.md`` says which classes have been tried.

    A state can't drop a sample again. With ids, as `BaseMetric.add` takes them, ``compute`` checks
    instead that each sample was added once, and names those that were not.

    Args:
        metric: A ``torchmetrics.Metric``. It is copied and reset; the original does not change.
        dist_backend: See `BaseMetric`.

    Raises:
        UsageError: ``metric`` is not a ``torchmetrics.Metric``, or it is of a class, or wraps one,
            that can't have one result on several ranks.
    """
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None or not isinstance(metric, torchmetrics.Metric):
        found = type(metric).__name__
        if torchmetrics is not None and isinstance(metric, torchmetrics.MetricCollection):
            found += "; give each metric of a collection by itself"
        raise UsageError(f"expected a torchmetrics.Metric, not a value of type {found}")
    for name in (kind.__name__ for part in _metrics_in(metric) for kind in type(part).__mro__):
        if name in _REFUSED:
            raise UsageError(
                f"{name} {_REFUSED[name]}; give from_torchmetrics a metric whose result follows "
                f"from the samples alone"
            )
    return _TorchMetric(metric, dist_backend)


class _TorchMetric(BaseMetric):
    """See `from_torchmetrics`."""

    uses_ids: bool = False

    def __init__(self, metric: Metric, dist_backend: str | BaseDistBackend | None) -> None:
        self._metric = metric
        # For `_describe`, by which ranks with other metrics are found.
        self.kind = " ".join(describe_settings(m, "torchmetrics.") for m in _metrics_in(metric))
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
                there are no samples, or the states of ranks can't be merged into what one process
                would have.
            CoverageError: On every rank, when there are ids, and a sample was added twice, is
                missing or is not in the data set.
            RankError: On every rank, when a rank's states can't be sent.
        """
        mine: tuple[Any, str | None]
        try:
            mine = _pack_states(self._results.metric, self._fresh().metric), None
        except Exception as error:  # the other ranks wait in the collective
            mine = None, describe_error(error)
        backend = self.dist_backend
        offer = self._ids.certificate(), self._results.samples, *mine
        shards = self._gather_alike(backend, size, offer)
        lengths = [samples for _, samples, _, _ in shards]
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
        added_here = [(samples, states) for _, samples, states, _ in shards if samples]
        if len(shards) > 1:
            _check_mergeable(self._results.metric, *zip(*added_here, strict=True))
        return self.compute_metric([states for _, states in added_here])

    def compute_metric(self, results: list[Any]) -> Any:
        """Merge the states of the ranks that have samples, and compute on every rank."""
        merged = self._results.metric.clone()
        for metric, shards in zip(_metrics_in(merged), zip(*results, strict=True), strict=True):
            # Else the metric would gather again if torch.distributed is initialised.
            metric.distributed_available_fn = lambda: False
            metric._update_count = sum(shard.updates for shard in shards)
            for name, value in shards[0].others.items():
                setattr(metric, name, unpack(value, metric.device))
            for name, reduction in metric._reductions.items():
                states = [unpack(shard.states[name], metric.device) for shard in shards]
                setattr(metric, name, _merge(states, reduction))
        return merged.compute()

    def _state(self) -> Any:
        metric = self._results.metric
        return self._results.samples, _pack_states(metric, self._fresh().metric)

    def _compute_states(self, states: Sequence[Any]) -> Any:
        added = [(samples, packed) for samples, packed in states if samples]
        if not added:
            raise no_samples()
        if len(added) > 1:
            _check_mergeable(self._results.metric, *zip(*added, strict=True))
        return self.compute_metric([packed for _, packed in added])

    def _fresh(self) -> _Added:
        metric = self._metric.clone()
        metric.reset()
        return _Added(metric)


class _Added:
    """A metric, and the number of samples that it was updated with."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.samples = 0


class _Shard(NamedTuple):
    """What a rank sends of one metric: its states, and what else ``update`` changed."""

    updates: int
    states: dict[str, Any]
    others: dict[str, Any]


def _metrics_in(metric: Metric) -> list[Metric]:
    """Return the metric and all metrics that it wraps; any of them may have states."""
    kind = sys.modules["torchmetrics"].Metric
    return [module for module in metric.modules() if isinstance(module, kind)]


def _merge(states: list[Any], reduction: Any) -> Any:
    """Merge one state of several ranks into what one process would have."""
    utilities = sys.modules["torchmetrics.utilities.data"]
    if len(states) == 1:
        return states[0]
    if any(isinstance(state, list) for state in states):
        merged = [entry for s in states for entry in (s if isinstance(s, list) else [s])]
        # Not concatenated: in one process, compute gets the list, and some classes need it.
        listed = reduction is None or reduction is utilities.dim_zero_cat
        return reduction(merged) if merged and not listed else merged
    torch = sys.modules["torch"]
    if reduction is utilities.dim_zero_mean and all(_equal(s, states[0]) for s in states):
        return states[0]  # without rounding, and integers have no mean in torch
    stacked = torch.stack(states)
    return stacked if reduction is None else reduction(stacked)


def _pack_states(metric: Metric, fresh: Metric) -> list[_Shard]:
    return [
        _Shard(
            found._update_count,
            {name: pack(getattr(found, name)) for name in found._reductions},
            {name: pack(value) for name, value in _changed(found, unused).items()},
        )
        for found, unused in zip(_metrics_in(metric), _metrics_in(fresh), strict=True)
    ]


def _changed(metric: Metric, fresh: Metric) -> dict[str, Any]:
    """Return the attributes that ``update`` changed although they are not states.

    Of containers only a new size is noticed. Other objects are not compared.
    """
    unused = vars(fresh)
    found = {}
    for name in vars(metric).keys() - metric._reductions.keys() - set(_OWN):
        value, before = getattr(metric, name), unused.get(name)
        if isinstance(value, list | dict | set):
            changed = not isinstance(before, type(value)) or len(before) != len(value)
        elif isinstance(value, bool | int | float | str | None) or kind_of(value) == "torch":
            changed = not _equal(value, before)
        else:
            changed = False
        if changed:
            found[name] = value
    return found


def _equal(one: Any, other: Any) -> bool:
    if kind_of(one) == kind_of(other) == "torch":
        return bool(one.shape == other.shape and sys.modules["torch"].equal(one, other))
    simple = not isinstance(one, list | dict | set)  # of which only the size was compared
    return simple and type(one) is type(other) and repr(one) == repr(other)


def _check_mergeable(metric: Metric, lengths: Sequence[int], ranks: Sequence[list[_Shard]]) -> None:
    """Raise UsageError, on every rank, where merged states would not be those of one process."""
    mean = sys.modules["torchmetrics.utilities.data"].dim_zero_mean
    for found, shards in zip(_metrics_in(metric), zip(*ranks, strict=True), strict=True):
        for name in {name for shard in shards for name in shard.others}:
            values = [unpack(shard.others.get(name, ("object", None)), "cpu") for shard in shards]
            if not all(_equal(value, values[0]) for value in values[1:]):
                raise UsageError(
                    f"update of {type(found).__name__} changes {name}, which is not one of its "
                    f"states, and ranks have different values; make it a state with add_state"
                )
        for name in (name for name, kind in found._reductions.items() if kind is mean):
            values = [unpack(shard.states[name], "cpu") for shard in shards]
            if len({*lengths}) > 1 and not all(_equal(value, values[0]) for value in values[1:]):
                raise UsageError(
                    f"{type(found).__name__} averages its state {name} over ranks as if they had "
                    f"equally many samples, but they have {[*lengths]}; make it a sum, and count "
                    f"the samples in another state"
                )
