"""Several metrics of one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.metrics.base import BaseMetric
from disteval.metrics.summable import SummableMetric, compute_together
from disteval.registry import get_dist_backend


class MetricGroup:
    """Metrics that receive the same batches and are computed together.

    All metrics that can be summed share one collective; each of the others gathers its entries.

    Args:
        metrics: Metrics by name. They compute over ``dist_backend`` from here on.
        dist_backend: A backend, or the name of one; None stands for the default backend.
    """

    def __init__(
        self,
        metrics: Mapping[str, BaseMetric],
        dist_backend: str | BaseDistBackend | None = None,
    ) -> None:
        self._backend = get_dist_backend(dist_backend)
        self._metrics = dict(metrics)
        for metric in self._metrics.values():
            metric.dist_backend = self._backend

    def reset(self) -> None:
        """Remove every entry of every metric."""
        for metric in self._metrics.values():
            metric.reset()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to every metric."""
        for metric in self._metrics.values():
            metric.add(*args, **kwargs)

    def compute(self, size: int | None = None) -> dict[str, Any]:
        """Compute every metric and return the results by name; every rank must call it.

        See `BaseMetric.compute` for ``size`` and for the errors.
        """
        return self.compute_with_note(size)[0]

    def compute_with_note(
        self, size: int | None = None, note: Any = None
    ) -> tuple[dict[str, Any], list[Any]]:
        """Compute every metric, and send a small object along in the same collective.

        Returns:
            The results by name; and every rank's note, by rank.
        """
        summable = {n: m for n, m in self._metrics.items() if isinstance(m, SummableMetric)}
        sums, notes = compute_together(self._backend, list(summable.values()), size, note)
        found = dict(zip(summable, sums, strict=True))
        for name, metric in self._metrics.items():
            if name not in found:
                found[name] = metric.compute(size)
        return {name: found[name] for name in self._metrics}, notes
