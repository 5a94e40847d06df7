"""Several metrics of one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isroutine
from typing import Any

from disteval.by_sample import takes_ids
from disteval.contract import BaseDistBackend
from disteval.default_backend import get_dist_backend, joining_backend
from disteval.errors import UsageError
from disteval.metrics.base import BaseMetric, compute_together


class MetricGroup:
    """Metrics that receive the same batches and are computed together.

    They share collectives: the first has the sums of all metrics that follow from sums, and those
    after it carry the entries of all others.

    Args:
        metrics: Metrics by name. They compute over ``dist_backend`` from here on.
        dist_backend: A backend, or the name of one. None stands for the one backend that the
            metrics were given, or else for the default, see `disteval.get_dist_backend`.

    Raises:
        UsageError: The metrics are not a dict of metrics, or they were given different backends.
    """

    def __init__(
        self,
        metrics: Mapping[str, BaseMetric],
        dist_backend: str | BaseDistBackend | None = None,
    ) -> None:
        check_metrics(metrics)
        self._metrics = dict(metrics)
        self._without_ids = [name for name, m in self._metrics.items() if not takes_ids(m.add)]
        given = {n: m._backend for n, m in self._metrics.items() if m._backend is not None}
        if dist_backend is None and given:
            if len({id(get_dist_backend(backend)) for backend in given.values()}) > 1:
                raise UsageError(
                    f"the metrics of a group compute over one backend, and these were given "
                    f"several: {given}; pass the one to use as dist_backend="
                )
            dist_backend = next(iter(given.values()))
        if dist_backend is not None:
            get_dist_backend(dist_backend)  # a wrong name is an error before the first batch
        self._backend = dist_backend
        for metric in self._metrics.values():
            metric._backend = dist_backend

    def reset(self) -> None:
        """Remove every entry of every metric."""
        for metric in self._metrics.values():
            metric.reset()

    def add(self, *args: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch to every metric, with the samples' ids if any, which each must take then."""
        if ids is not None:
            kwargs["ids"] = ids
            if self._without_ids:
                name = self._without_ids[0]
                raise UsageError(
                    f"the metric {name!r} takes no ids; give {type(self._metrics[name]).__name__}"
                    f".add a parameter ids, and pass it to _append or _extend"
                )
        for metric in self._metrics.values():
            metric.add(*args, **kwargs)

    def compute(self, size: int | None = None) -> dict[str, Any]:
        """Compute every metric and return the results by name; every rank must call it.

        See `BaseMetric.compute` for ``size`` and for the errors. Ranks whose metrics or settings
        differ raise UsageError.
        """
        # By name, because each rank may have made its dict in another order, as from a set.
        metrics = {name: self._metrics[name] for name in sorted(self._metrics, key=str)}
        settings = {f"the metric {name!r}": each._describe() for name, each in metrics.items()}
        # A metric with a compute of its own gathers by itself.
        common = BaseMetric.compute
        shared = {name: each for name, each in metrics.items() if type(each).compute is common}
        backend = joining_backend(self._backend)
        results = compute_together(backend, [*shared.values()], size, settings)
        found = dict(zip(shared, results, strict=True))
        found |= {name: metrics[name].compute(size) for name in metrics if name not in shared}
        return {name: found[name] for name in self._metrics}


def check_metrics(metrics: object) -> None:
    """Raise UsageError if a value is not a mapping of names to metrics, each of them another."""
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"metrics must be a dict of names and metrics, such as {{'accuracy': Accuracy()}}, "
            f"not a value of type {type(metrics).__name__}"
        )
    names: dict[int, object] = {}
    for name, metric in metrics.items():
        if (first := names.setdefault(id(metric), name)) != name:
            raise UsageError(
                f"the metrics {first!r} and {name!r} are one object, which would add each sample "
                f"twice; make a metric for each name"
            )
        if not isinstance(metric, BaseMetric):
            remedy = "make one with from_torchmetrics, if it is one of torchmetrics"
            if isinstance(metric, type):
                remedy = f"make one, {metric.__name__}()"
            elif isroutine(metric):
                remedy = (
                    f"for a function that returns a number for each sample, give Mean() in its "
                    f"place, and evaluate update={{{name!r}: lambda outputs, batch: "
                    f"({metric.__name__}(outputs, batch),)}}; docs/extend.md says more"
                )
            raise UsageError(
                f"the metric {name!r} must be an instance of a BaseMetric, such as "
                f"disteval.metrics.Accuracy(), not {metric!r}; {remedy}"
            )
