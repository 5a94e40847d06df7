"""The planted samples of an audit, and the results that a right evaluation gives for them.

All planted numbers are small integers, so that sums of floats are exact in any order. A *probe* is
a set in which one sample alone is right, has the value 1, and has a loss: the mean that a loop
returns for it is the weight that the loop gives to this sample. Its labels are those of the set
that it explains, for a loop may treat one class otherwise than the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 16
"""The number of classes of the planted labels and scores."""

_FEATURES = 8
_LARGEST = 64
_LONGEST = 7
_FAR = 2**24 + 1  # float32 holds every integer below that, and only even ones from there on

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Planted:
    """The samples of one call of a user's function.

    Args:
        size: The number of samples, from 0 up.
        seed: What decides the planted numbers.
        inverted: Whether everything is planted otherwise: other predictions, another half of the
            samples right, other values; so that what one set hides the other shows.
        probe: The samples that alone count for something; None plants numbers for all samples.
        tokens: Whether samples also have tokens.
        other_ids: Whether ids are other numbers than positions, in no order.
    """

    size: int
    seed: int = 0
    inverted: bool = False
    probe: range | None = None
    tokens: bool = False
    other_ids: bool = False

    def sample(self, index: int) -> dict[str, Any]:
        """Return a sample as the data set gives it to the user's function.

        Returns:
            ``id`` (int), ``x`` (float32 of shape (8,)), ``label`` (int) and ``value`` (float32);
            and with tokens ``tokens`` (int64 of shape (T,)) and ``mask`` (the same shape, 1).
        """
        x = np.zeros(_FEATURES, dtype=np.float32)
        x[0], x[1] = self.predicted[index], index
        found: dict[str, Any] = {
            "id": int(self.ids[index]),
            "x": x,
            "label": int(self.labels[index]),
            "value": np.float32(self.values[index]),
        }
        if self.tokens:
            tokens = self.token_losses[index]
            found |= {"tokens": tokens.copy(), "mask": np.ones_like(tokens)}
        return found

    @cached_property
    def ids(self) -> Numbers:
        """The id of each sample: its position; or a number that float32 does not hold exactly."""
        if not self.other_ids:
            return np.arange(self.size)
        return _FAR + 2 * self._random(6, probed=False).permutation(3 * self.size)[: self.size]

    @cached_property
    def predicted(self) -> Numbers:
        """The class that the planted model predicts for each sample; different ones up to 16."""
        if self.probe is not None:
            return self._same_if_right(self.labels)
        return self._random(0).permutation(max(self.size, CLASSES))[: self.size] % CLASSES

    @cached_property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether the prediction of each sample equals its label."""
        if self.probe is not None:
            return np.isin(np.arange(self.size), self.probe)
        # Half of the samples, since a repeat of one among equals would not change the result.
        return np.asarray(self._random(1).permutation(self.size) % 2 == int(self.inverted))

    @cached_property
    def labels(self) -> Numbers:
        """The label of each sample."""
        if self.probe is not None:
            return replace(self, probe=None).labels
        return self._same_if_right(self.predicted)

    @cached_property
    def values(self) -> Numbers:
        """The value of each sample."""
        if self.probe is not None:
            return self.right.astype(np.int64)
        drawn = self._random(3).integers(0, _LARGEST, self.size)
        return _LARGEST - drawn if self.inverted else drawn

    @cached_property
    def lengths(self) -> Numbers:
        """The number of tokens of each sample, which a probe does not change."""
        return self._random(4, probed=False).integers(1, _LONGEST + 1, self.size)

    @cached_property
    def token_losses(self) -> list[Numbers]:
        """The tokens of each sample; the planted loss of a token is the token's own number."""
        drawn = self._random(5)
        if self.probe is not None:
            return [np.full(n, int(a)) for n, a in zip(self.lengths, self.right, strict=True)]
        return [drawn.integers(0, _LARGEST, n) for n in self.lengths]

    def truth(self) -> dict[str, float]:
        """Return the true result of each name whose truth is known; no means of no samples."""
        sums: dict[str, float] = {"sum": float(self.values.sum()), "count": float(self.size)}
        if self.size == 0:
            return sums
        sums |= {"accuracy": float(self.right.mean()), "mean": float(self.values.mean())}
        sums["loss"] = sums["mean"]
        if self.tokens:
            sums["loss"] = float(np.concatenate(self.token_losses).mean())
        return sums

    def fair_weights(self, name: str) -> npt.NDArray[np.float64]:
        """Return the weight that each sample has in a right result of that name."""
        ones = np.ones(self.size)
        if name == "sum":
            return ones
        if name == "loss" and self.tokens:
            return np.asarray(self.lengths / self.lengths.sum())
        return ones / self.size

    def _same_if_right(self, classes: Numbers) -> Numbers:
        shift = self._random(2).integers(1, CLASSES, self.size)
        return np.asarray(np.where(self.right, classes, (classes + shift) % CLASSES))

    def _random(self, purpose: int, *, probed: bool = True) -> np.random.Generator:
        probe = -1 if self.probe is None or not probed else self.probe.start
        other = (1,) * self.inverted
        return np.random.default_rng((self.seed, self.size, purpose, probe + 1, *other))


KNOWN = ("sum", "count", "accuracy", "mean", "loss")
"""The names of numbers whose truth is known."""

WEIGHED = ("accuracy", "mean", "loss", "sum")
"""The names of results in which each sample has a weight, which probes measure."""
