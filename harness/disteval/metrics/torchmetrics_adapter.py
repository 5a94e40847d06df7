"""Any torchmetrics metric over any backend.

torchmetrics gathers its states over `torch.distributed` only, with one collective or more for each.
Here all states travel together, as one object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from numbers import Number
from typing import Any, Literal, NamedTuple

import numpy as np

from disteval.contract import BaseDistBackend
from disteval.coverage import add_certificates, describe_faults, not_once, prove
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Numbers, kind_of, to_numpy
from disteval.metrics.base import BaseMetric, Steps, settings_in, spelled
from disteval.metrics.state import all_have_ids, check_collected, no_samples

_MOST = np.iinfo(np.int64).max

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

_UNUSED = (
    "compute_on_cpu", "compute_with_cache", "dist_sync_fn", "dist_sync_on_step", "process_group",
    "sync_on_compute", "training",
)  # fmt: skip
"""Settings of ``torchmetrics.Metric`` that change no result here."""


def from_torchmetrics(
    metric: Metric,
    dist_backend: str | BaseDistBackend | None = None,
    dist_collect_mode: Literal["unzip", "cat"] = "unzip",
) -> BaseMetric:
    """Make a `BaseMetric` of a torchmetrics metric.

    The result is the value of the metric's own ``compute``, on every rank. States are merged as
    torchmetrics merges them, except that ranks without samples are left out. A metric that counts,
    or keeps its samples, gives the same result at any world size; one that sums floats differs in
    the last bits. The page ``docs/metrics.md`` says which classes have been tried.

    States that are lists are put in the order of the data set, by ids or else by
    ``dist_collect_mode``: entry by entry where each batch added one for each sample, else row by
    row where each added one tensor with equally many rows for each sample. If neither is so, as
    where labels are ignored, whole batches are put in the order of their first samples.

    A state can't drop a sample again. With ids, as `BaseMetric.add` takes them, ``compute`` checks
    instead that each sample was added once, and names those that were not.

    Args:
        metric: A ``torchmetrics.Metric``. It is copied and reset; the original does not change.
        dist_backend: See `BaseMetric`.
        dist_collect_mode: See `BaseMetric`.

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
    return _TorchMetric(metric, dist_backend=dist_backend, dist_collect_mode=dist_collect_mode)


class _TorchMetric(BaseMetric):
    """See `from_torchmetrics`."""

    def __init__(self, metric: Metric, **common: Any) -> None:
        self._metric = metric.clone()
        self._metric.reset()
        super().__init__(**common)
        first, *inner = map(_settings, _metrics_in(self._metric))  # by which others are found
        vars(self).update(first)
        self.inner = spelled(inner)
        self.uses_ids = bool(_lengths(self._metric))  # only lists have an order

    def add(self, *args: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch; an empty one is ignored.

        Args:
            *args: The arguments of the metric's ``update``, mostly predictions and labels. Arrays
                of any framework, and lists of numbers, become tensors on the metric's device. The
                length of the first argument is the number of samples.
            ids: The samples' global numbers, see `BaseMetric.add`.
            **kwargs: More arguments of ``update``.
        """
        samples = next((_length(value) for value in [*args, *kwargs.values()]), 1)
        checked = self._ids.check(ids, samples, len(self._results))
        if samples:
            device = self._results.metric.device
            given = [_to_tensors(value, device) for value in args]
            named = {name: _to_tensors(value, device) for name, value in kwargs.items()}
            self._results.update(samples, given, named)
        if checked is not None:
            self._ids.add(checked)

    def _steps(self, backend: BaseDistBackend, size: int | None) -> Steps:
        name = type(self._metric).__name__
        lengths, proofs = zip(*(yield f"count {name}", self._counted), strict=True)
        if all_have_ids(lengths, proofs):
            if size is None or not prove(add_certificates([*filter(None, proofs)]), size):
                shards = yield f"check {name}", lambda: self._ids.all().ids
                if faults := describe_faults(shards, size):
                    raise not_once(sum(map(len, shards)), size, faults)
        else:
            check_collected(size, sum(lengths))
            if size is not None and size < sum(lengths):
                raise UsageError(
                    f"size={size}, but all ranks together added {sum(lengths)} samples, and a "
                    f"torchmetrics metric can't drop any; leave padding out before add(), as "
                    f"disteval.evaluate does"
                )
        states = yield f"send {name}", self._state
        return self._merged(states, mode=self.dist_collect_mode)

    def compute_metric(self, results: list[_Share]) -> Any:
        """Merge the states of the ranks that have samples, and compute on every rank."""
        merged = self._results.metric.clone()
        for at, metric in enumerate(_metrics_in(merged)):
            # Else the metric would gather again if torch.distributed is initialised.
            metric.distributed_available_fn = lambda: False
            metric._update_count = sum(share.updates[at] for share in results)
            for name, value in results[0].others[at].items():
                setattr(metric, name, _unpack(value, metric.device))
            listed: dict[str, list[_Block]] = {}
            for name, reduction in metric._reductions.items():
                states = [_unpack(share.states[at][name], metric.device) for share in results]
                if any(isinstance(state, list) for state in states):
                    each = zip(results, states, strict=True)
                    listed[name] = [
                        block
                        for share, state in each
                        for block in _blocks(share, share.grown.get((at, name), []), state)
                    ]
                else:
                    setattr(metric, name, _merge(states, reduction))
            for name, entries in _in_order(listed).items():
                # Not concatenated: in one process, compute gets the list, and some need it.
                reduction = metric._reductions[name]
                plain = not entries or reduction in (None, _utilities().dim_zero_cat)
                setattr(metric, name, entries if plain else reduction(entries))
        return merged.compute()

    def _state(self) -> _Share:
        added, ids = self._results, self._ids.all()
        pairs = [*zip(_metrics_in(added.metric), _metrics_in(self._metric), strict=True)]
        return _Share(
            len(added),
            np.repeat(*ids) if self.uses_ids and self._ids.samples else None,
            added.batches,
            added.grown,
            [found._update_count for found, _ in pairs],
            [_packed({n: getattr(found, n) for n in found._reductions}) for found, _ in pairs],
            [_packed(_changed(found, fresh)) for found, fresh in pairs],
        )

    def _merged(self, states: Sequence[_Share], size: int | None = None, mode: str = "cat") -> Any:
        """Compute over what ranks or leases have added, with a place for each sample."""
        lengths = [share.samples for share in states]
        added = []
        for at, share in enumerate(states):
            places = np.arange(share.samples)
            places = places + sum(lengths[:at]) if mode == "cat" else places * len(states) + at
            if share.samples:
                added.append(share if share.places is not None else share._replace(places=places))
        if not added:
            raise no_samples()
        if len(states) > 1:
            _check_mergeable(self._results.metric, added)
        return self.compute_metric(added)

    def reset(self) -> None:
        """Remove every entry."""
        super().reset()
        self._results = _Added(self._metric.clone())


class _Added:
    """A metric, the samples that it was updated with, and what each batch added to its lists."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.batches: list[int] = []
        self.grown: dict[tuple[int, str], list[int]] = {key: [] for key in _lengths(metric)}

    def __len__(self) -> int:
        return sum(self.batches)

    def update(self, samples: int, given: Sequence[Any], named: dict[str, Any]) -> None:
        before = _lengths(self.metric)
        self.metric.update(*given, **named)
        self.batches.append(samples)
        for key, now in _lengths(self.metric).items():
            self.grown.setdefault(key, []).append(now - before.get(key, 0))


class _Share(NamedTuple):
    """What one rank or lease has added. The metrics are the metric, and all that it wraps.

    Attributes:
        samples: The number of its samples.
        places: The place of each sample in the data set, shape (samples,); None if it has no ids.
        batches: The number of samples of each batch.
        grown: How many entries each batch added to a state that is a list, see `_lengths`.
        updates: How often each metric was updated.
        states: The states of each metric by name, packed.
        others: The attributes of each metric that ``update`` changed although they are not states.
    """

    samples: int
    places: Numbers | None
    batches: list[int]
    grown: dict[tuple[int, str], list[int]]
    updates: list[int]
    states: list[dict[str, Any]]
    others: list[dict[str, Any]]


class _Tensor(NamedTuple):
    """A tensor as it travels: NumPy's arrays travel faster, and have no device."""

    dtype: str
    array: Array


_Block = tuple[Numbers, list[Any]]
"""The places of a batch's samples, and the entries that the batch added to one state."""


def _utilities() -> Any:
    return sys.modules["torchmetrics.utilities.data"]


def _lengths(metric: Metric) -> dict[tuple[int, str], int]:
    """Return the length of each state that is a list, by the metric's number and its name."""
    return {
        (at, name): len(value)
        for at, found in enumerate(_metrics_in(metric))
        for name in found._reductions
        if isinstance(value := getattr(found, name), list)
    }


def _blocks(share: _Share, grown: list[int], state: Any) -> list[_Block]:
    """Return what each batch added to a state; all of it as one batch where that is not known."""
    entries, places = (state if isinstance(state, list) else [state]), share.places
    assert places is not None
    if len(grown) != len(share.batches) or sum(grown) != len(entries) or min(grown) < 0:
        return [(places, entries)]
    cuts, ends = np.cumsum(share.batches)[:-1], [*accumulate(grown)]
    parts = [entries[end - more : end] for end, more in zip(ends, grown, strict=True)]
    return [*zip(np.split(places, cuts), parts, strict=True)]


def _in_order(states: dict[str, list[_Block]]) -> dict[str, list[Any]]:
    """Return the entries of states in the order of their samples, the same order for all."""
    rows = {name: _rows_of(blocks) for name, blocks in states.items()}
    if None in rows.values():
        rows = dict.fromkeys(states)
    return {name: _sorted(blocks, rows[name]) for name, blocks in states.items()}


def _rows_of(blocks: list[_Block]) -> int | None:
    """Return how many rows a sample has in a state: 0 for an entry; None if that is not known."""
    if all(len(entries) == len(places) for places, entries in blocks):
        return 0
    if not any(entries for _, entries in blocks):
        return 0
    found = set()
    for at, entries in blocks:
        shape = entries[0].shape if len(entries) == 1 and kind_of(entries[0]) == "torch" else ()
        found.add(shape[0] // len(at) if shape and shape[0] % len(at) == 0 else None)
    return found.pop() or None if len(found) == 1 else None


def _sorted(blocks: list[_Block], rows: int | None) -> list[Any]:
    entries = [*chain.from_iterable(entries for _, entries in blocks)]
    if rows is None:
        blocks = sorted(blocks, key=lambda block: block[0].min())
        return [*chain.from_iterable(entries for _, entries in blocks)]
    order = np.argsort(np.concatenate([places for places, _ in blocks]), kind="stable")
    if rows and entries and len({(each.shape[1:], each.dtype) for each in entries}) == 1:
        torch = sys.modules["torch"]
        index = (order[:, None] * rows + np.arange(rows)).reshape(-1)
        return [torch.cat(entries)[torch.from_numpy(index).to(entries[0].device)]]
    if rows:
        entries = [*chain.from_iterable(entry.split(rows) for entry in entries)]
    return [entries[at] for at in order] if entries else entries


def _settings(metric: Metric) -> dict[str, Any]:
    """Return the attributes and tensors of a metric, such as thresholds, that are no states."""
    kind, left_out = type(metric), {*metric._reductions, *_UNUSED}
    found = settings_in(vars(metric) | metric._buffers).items()
    settings = {f"{kind.__name__}.{name}": value for name, value in found if name not in left_out}
    return {kind.__name__: f"{kind.__module__}.{kind.__qualname__}", **settings}


def _metrics_in(metric: Metric) -> list[Metric]:
    """Return the metric and all metrics that it wraps; any of them may have states."""
    kind = sys.modules["torchmetrics"].Metric
    return [module for module in metric.modules() if isinstance(module, kind)]


def _merge(states: list[Any], reduction: Any) -> Any:
    """Merge one state of several ranks, which is no list, into what one process would have."""
    if len(states) == 1:
        return states[0]
    torch = sys.modules["torch"]
    if reduction is _utilities().dim_zero_mean and all(_equal(s, states[0]) for s in states):
        return states[0]  # without rounding, and integers have no mean in torch
    stacked = torch.stack(states)
    return stacked if reduction is None else reduction(stacked)


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


def _check_mergeable(metric: Metric, shares: Sequence[_Share]) -> None:
    """Raise UsageError, on every rank, where merged states would not be those of one process."""

    def differ(packed: Iterable[Any]) -> bool:
        first, *others = (_unpack(value, "cpu") for value in packed)
        return not all(_equal(value, first) for value in others)

    lengths = [share.samples for share in shares]
    for at, found in enumerate(_metrics_in(metric)):
        kind = type(found).__name__
        for name in {name for share in shares for name in share.others[at]}:
            if differ(share.others[at].get(name) for share in shares):
                raise UsageError(
                    f"update of {kind} changes {name}, which is not one of its states, and ranks "
                    f"have different values; make it a state with add_state"
                )
        for name, reduction in found._reductions.items():
            averages = reduction is _utilities().dim_zero_mean and len({*lengths}) > 1
            if averages and differ(share.states[at][name] for share in shares):
                raise UsageError(
                    f"{kind} averages its state {name} over ranks as if they had equally many "
                    f"samples, but they have {lengths}; make it a sum, and count the samples in "
                    f"another state"
                )


def _packed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _pack(value) for name, value in values.items()}


def _pack(value: Any) -> Any:
    if isinstance(value, list):
        return [_pack(entry) for entry in value]
    if kind_of(value) != "torch":
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    tensor = value.detach().cpu().contiguous()
    if dtype == "bfloat16":  # NumPy lacks it
        tensor = tensor.view(sys.modules["torch"].int16)
    return _Tensor(dtype, tensor.numpy())


def _unpack(packed: Any, device: Any) -> Any:
    """Rebuild the value that `_pack` was given, with new tensors on a device."""
    if isinstance(packed, list):
        return [_unpack(entry, device) for entry in packed]
    if not isinstance(packed, _Tensor):
        return packed
    torch = sys.modules["torch"]
    return torch.tensor(packed.array).view(getattr(torch, packed.dtype)).to(device)


def _length(value: Any) -> int:
    """Count samples: an array's first axis, or a list's entries; any other value is one sample."""
    if isinstance(value, Mapping):
        return next((_length(part) for part in value.values()), 0)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value)
    shape = getattr(value, "shape", ())
    return shape[0] if shape else 1


def _to_tensors(value: Any, device: Any) -> Any:
    """Turn arrays and lists of numbers into tensors, at any depth; other values stay."""
    torch = sys.modules["torch"]
    if isinstance(value, Mapping):
        return {key: _to_tensors(part, device) for key, part in value.items()}
    if kind_of(value) == "torch":
        # A copy: the metric may keep the tensor, and the caller may reuse its memory.
        return value.detach().to(device, copy=True)
    if isinstance(value, list | tuple) and not _holds_numbers(value):
        parts = [_to_tensors(part, device) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, list | tuple | np.ndarray | np.generic) or kind_of(value) != "numpy":
        array = to_numpy(value)
        # torch supports few operations on the wider unsigned integers.
        wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
        if wide and array.size and array.max() > _MOST:
            raise UsageError(
                f"a torchmetrics metric gets int64 for {array.dtype}, which does not hold "
                f"{array.max()}; give numbers up to 2**63-1"
            )
        # A copy in C's order: torch takes no negative strides.
        kind = np.int64 if wide else array.dtype
        return torch.from_numpy(np.array(array, kind, order="C")).to(device)
    return value


def _holds_numbers(value: Any) -> bool:
    while isinstance(value, list | tuple) and len(value):
        value = value[0]
    return isinstance(value, Number | np.generic)
