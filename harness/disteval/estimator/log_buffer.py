"""The variables that steps and hooks report, as averages for log lines and sums for records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.exact import exact_mean, exact_sum

WeightedSum = tuple[list[int], int]
"""`disteval.metrics.exact.exact_sum` of value times weight, as a list; and the sum of weights."""


class LogBuffer:
    """The variables of the current phase on this rank.

    Attributes:
        val_history: Each variable's values since `clear`, one for each update.
        n_history: Their weights, such as the samples of a batch.
        output: The result of the last `average`.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.val_history: dict[str, list[float]] = {}
        self.n_history: dict[str, list[int]] = {}
        self._unrecorded: set[str] = set()
        self.output: dict[str, float] = {}

    def update(self, variables: Mapping[str, Any], count: int = 1, *, record: bool = True) -> None:
        """Add one value of each variable.

        Args:
            variables: Numbers, or tensors with one element, by name.
            count: Their weight in an average: the number of samples that they are the mean of.
            record: Whether they belong in the phase's record, or in log lines alone.

        Raises:
            UsageError: A value is not a number. Nothing was added.
        """
        found = {name: number(name, value) for name, value in variables.items()}
        for name, value in found.items():
            self.val_history.setdefault(name, []).append(value)
            self.n_history.setdefault(name, []).append(count)
            if not record:
                self._unrecorded.add(name)

    def average(self, n: int = 0) -> None:
        """Set `output` to each variable's weighted mean over its last ``n`` updates; 0 for all."""
        for name, history in self.val_history.items():
            values, weights = history[-n:], self.n_history[name][-n:]
            total = sum(weights)
            if total:
                self.output[name] = float(np.dot(values, weights)) / total

    def sums(self) -> dict[str, WeightedSum]:
        """Return the sum over the phase of each variable that belongs in the record."""
        return {
            name: _sum(values, self.n_history[name])
            for name, values in self.val_history.items()
            if name not in self._unrecorded
        }


def number(name: str, value: Any) -> float:
    """Return the value that a step reported under ``name`` as a float.

    Raises:
        UsageError: The value is neither a number nor a tensor with one element.
    """
    try:
        if isinstance(value, str):
            raise TypeError("text")
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the variable {name!r} must be a number or a tensor with one element, not {value!r}"
        ) from error


def averages(ranks: Sequence[Mapping[str, WeightedSum]]) -> dict[str, float]:
    """Return the weighted means over all ranks' batches, each rounded once.

    Args:
        ranks: Each rank's `LogBuffer.sums`; a rank may lack a variable.

    Returns:
        The float64 nearest to each mean, the same for any order and any split over ranks.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for sums in ranks for name in sums):
        parts = [sums[name] for sums in ranks if name in sums]
        weight = sum(part[1] for part in parts)
        if weight:
            total = sum(np.array(part[0], dtype=object) for part in parts)
            found[name] = exact_mean(np.asarray(total), weight)
    return found


def _sum(values: Sequence[float], weights: Sequence[int]) -> WeightedSum:
    # A phase's batches have few sizes, so there are few products of large integers.
    total = np.zeros(4, dtype=object)
    by_weight = np.asarray(weights)
    for weight in sorted(set(weights)):
        total = total + exact_sum(np.asarray(values)[by_weight == weight]) * weight
    return [int(part) for part in total], sum(weights)
