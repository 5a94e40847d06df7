"""The records of phases, and the variables that steps and hooks report for them.

A record says what was done and found on all ranks together, and is the same on each of them.

========================  =====================================================================
``epoch``, ``iter``       passes and iterations that were trained when the phase had ended
``mode``                  ``train`` or ``val``
``num_samples``           samples on all ranks
``loss``, each log_var    mean over all ranks' batches, weighted by samples, rounded once
``lr``                    train: the first parameter group's learning rate at the last iteration
``samples_per_second``    samples divided by seconds
``seconds``               the time that the slowest rank took
each metric               val: its result; one with several values gives ``{name}_{key}`` for each
``accuracy``              val, without metrics, if scores are of classes: ``correct / evaluated``
``correct``               samples whose label has the best score, an integer
``evaluated``             samples with a score, an integer
========================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics import BaseMetric
from disteval.metrics.exact import exact_mean, exact_sum
from disteval.metrics.group import check_metrics

Record = dict[str, Any]

_OWN = ["epoch", "iter", "mode", "num_samples", "lr", "samples_per_second", "seconds", "evaluated"]
_PLAIN = {"epoch", "iter", "mode", "num_samples", "seconds", "correct", "evaluated"}

WeightedSum = tuple[list[int], int]
"""`disteval.metrics.exact.exact_sum` of value times weight, as a list; and the sum of weights."""


def named_metrics(metrics: Any) -> dict[str, BaseMetric] | None:
    """Return metrics by name as a dict; UsageError if they are something else."""
    if metrics is None:
        return None
    check_metrics(metrics)
    for name in metrics:
        _check_name("metric", name)
    return dict(metrics)


class LogBuffer:
    """The variables of the current phase on this rank.

    Attributes:
        history: For each variable, pairs of a value and its weight, one for each update.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.history: dict[str, list[tuple[float, int]]] = {}

    def update(self, variables: Mapping[str, Any], count: int = 1) -> None:
        """Add one value of each variable: a number, or a tensor with one element.

        Args:
            variables: The values by name; that of another entry of a record is an error.
            count: Their weight in an average: the number of samples that they are the mean of.
        """
        for name in variables:
            _check_name("variable", name)
        found = {name: number(name, value) for name, value in variables.items()}
        for name, value in found.items():
            self.history.setdefault(name, []).append((value, count))

    def average(self, n: int) -> dict[str, float]:
        """Return each variable's weighted mean over its last ``n`` updates."""
        found = {}
        for name, history in self.history.items():
            values, weights = zip(*history[-n:], strict=True)
            if sum(weights):
                found[name] = float(np.average(values, weights=weights))
        return found

    def sums(self) -> dict[str, WeightedSum]:
        """Return the sum over the phase of each variable."""
        found = {}
        for name, history in self.history.items():
            # A phase's batches have few sizes, so there are few products of large integers.
            by_weight: dict[int, list[float]] = {}
            for value, weight in history:
                by_weight.setdefault(weight, []).append(value)
            total = sum(exact_sum(np.array(v)) * weight for weight, v in by_weight.items())
            weights = sum(weight * len(v) for weight, v in by_weight.items())
            found[name] = [int(part) for part in np.asarray(total)], weights
        return found


def averages(ranks: Sequence[Mapping[str, WeightedSum]]) -> dict[str, float]:
    """Return the weighted means over all ranks' batches from each rank's `LogBuffer.sums`.

    The float64 nearest to each mean is the same for any order and any split over ranks.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for sums in ranks for name in sums):
        parts = [sums[name] for sums in ranks if name in sums]
        weight = sum(part[1] for part in parts)
        if weight:
            total = sum(np.array(part[0], dtype=object) for part in parts)
            found[name] = exact_mean(np.asarray(total), weight)
    return found


def number(name: str, value: Any) -> float:
    """Return the number, or tensor with one element, that a step reported as a float."""
    try:
        if isinstance(value, str):
            raise TypeError("text")
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(
            f"the variable {name!r} must be a number or a tensor with one element, not {value!r}"
        ) from error


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record as one line of text."""
    parts = [f"epoch {record['epoch']:<3}", f"{record['mode']:<5}"]
    for name, value in record.items():
        if name == "samples_per_second":
            parts.append(f"{value:.0f} samples/s")
        elif name == "accuracy" and "correct" in record:
            parts.append(f"accuracy {value:.4f} ({record['correct']} of {record['evaluated']})")
        elif name not in _PLAIN and isinstance(value, (int, float)):
            parts.append(f"{name} {value:.4g}")
    return "  ".join([*parts, f"{record['seconds']:.1f} s"])


def _check_name(what: str, name: str) -> None:
    if name in _OWN:
        raise UsageError(
            f"the {what} {name!r} would replace an entry of the record; give it another name than "
            f"{', '.join(_OWN)}"
        )
