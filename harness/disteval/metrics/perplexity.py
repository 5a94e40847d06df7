"""Cross-entropy and perplexity of token sequences: by token, by sequence and by byte."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disteval.arguments import check_flag
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, Numbers, refuse, refuse_nan, to_numpy
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.exact import exact_mean, exact_sum
from disteval.metrics.labels import check_ignored, class_indices, of_shape, truths_of
from disteval.metrics.mean import check_logits, cross_entropies

_LARGEST_LOG = 1e-3  # rounding may make the logarithm of a probability that small a number above 0
_NOT_GIVEN = -1


class Perplexity(SummableMetric):
    """The cross-entropy of token sequences, and the perplexity that follows from it.

    A token's cross-entropy, in nats, is minus the logarithm of the probability that the model gives
    to its label. Tokens whose label is ``ignore_label``, or that a mask leaves out, do not count.
    A sample is one sequence, such as a document. The result is a dict:

    - ``cross_entropy``: the mean over all tokens; and ``perplexity``, e to the power of it.
    - ``cross_entropy_by_sequence``: the mean over sequences of each one's mean over its tokens; and
      ``perplexity_by_sequence``, e to the power of it. They differ from the first two if sequences
      have different lengths.
    - ``nats_per_sequence``: the mean over sequences of each one's sum over its tokens.
    - ``bits_per_byte``: the sum over all tokens, in bits, divided by the number of bytes, if
      ``add`` was given these; and ``perplexity_per_byte``, 2 to the power of it. They compare
      models whose tokens differ.
    - ``tokens`` and ``sequences``: the numbers of tokens, and of sequences that have any; only
      these count.

    Token losses are computed in float64 on the host and summed exactly; each sequence's sum is
    rounded once, and so is every mean. An infinite loss gives infinite means; NaN is an error.

    Args:
        ignore_label: The label of tokens that do not count; None counts every label.
        shift: Whether labels and mask are those of the same tokens that the model was given, as
            causal language models take them: then the prediction at place t is compared with the
            label at place t + 1, and the first label and the last prediction do not count.
        refuse_probabilities: Whether a batch of probabilities in the place of logits is an error,
            see `CrossEntropy`.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(
        self,
        *,
        ignore_label: int | None = -100,
        shift: bool = False,
        refuse_probabilities: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.ignore_label = check_ignored(ignore_label)
        check_flag("shift", shift)
        check_flag("refuse_probabilities", refuse_probabilities)
        self.shift = shift
        self.refuse_probabilities = refuse_probabilities

    def add(
        self,
        predictions: Any,
        labels: Any = None,
        mask: Any = None,
        *,
        byte_counts: Any = None,
        ids: Any = None,
    ) -> None:
        """Add a batch of B sequences that are filled up to T tokens.

        Labels belong to the predictions at the same place, or with ``shift`` at the place before.

        Args:
            predictions: Logits or log-probabilities of C classes, shape (B, T, C); or, without
                labels, the log-probabilities of the labels, shape (B, T). Real numbers of any
                framework and dtype. The second form does not bring every class to the host.
            labels: The true classes, shape (B, T); integers, or floats that hold integers.
            mask: Which tokens count, shape (B, T): truth values, 0 or 1. None counts all.
            byte_counts: The number of bytes of each sequence's text, shape (B,). Give it for every
                batch or for none.
            ids: The sequences' global numbers, see `BaseMetric.add`.
        """
        scores = to_numpy(predictions, "predictions")
        shape = scores.shape[:2]
        if scores.ndim != (2 if labels is None else 3) or 0 in scores.shape[2:]:
            raise UsageError(
                f"predictions of shape {scores.shape} {'without' if labels is None else 'with'} "
                f"labels; give scores of shape (B, T, C) with labels, or the labels' "
                f"log-probabilities of shape (B, T) without labels"
            )
        counted = np.ones(shape, np.bool_) if mask is None else truths_of(mask, shape)
        true = None if labels is None else of_shape(labels, shape, "labels")
        if true is not None and self.ignore_label is not None:
            counted = counted & (true != self.ignore_label)
        if self.shift:
            if true is None:
                raise UsageError(
                    "shift=True needs labels, to which predictions are shifted; give logits and "
                    "labels, or log-probabilities that are shifted, with shift=False"
                )
            scores, true, counted = scores[:, :-1], true[:, 1:], counted[:, 1:]
        refuse_nan("predictions", scores, counted if true is None else counted[..., None])
        kept, rows = scores[counted], np.nonzero(counted)[0]
        if true is None:
            losses = -kept.astype(np.float64)
            remedy = "; give the logarithms of the labels' probabilities, not losses"
            must = "log-probabilities must be 0 or less"
            refuse(must, kept, kept > _LARGEST_LOG, remedy, rows)
        else:
            if self.refuse_probabilities:
                check_logits(kept)
            what = "labels of tokens that count"
            classes = class_indices(true[counted], scores.shape[2], what, rows)
            losses = cross_entropies(kept, classes)
        tokens = counted.sum(axis=1)
        parts = np.split(losses, np.cumsum(tokens)[:-1]) if len(tokens) else []
        sizes = np.full(len(tokens), _NOT_GIVEN)
        if byte_counts is not None:
            sizes = _byte_counts(byte_counts, len(tokens))
        totals = np.array([_sum(part) for part in parts], np.float64)
        self._append(np.stack([totals, tokens, sizes], axis=1), ids)

    def sums_of(self, column: Array) -> Sums:
        """Sum exactly: Python integers of shape (12,), in the order in which `from_sums` reads."""
        tokens, sizes = column[:, 1:].astype(np.int64).T
        counted, given = tokens > 0, sizes != _NOT_GIVEN
        totals = column[counted, 0]
        means = totals / tokens[counted]
        counts = [int(each.sum()) for each in (counted, tokens, given, sizes[given])]
        return np.concatenate([exact_sum(totals), exact_sum(means), counts])

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Divide the sums, each of which is rounded once."""
        total, by_sequence = sums[:4], sums[4:8]
        sequences, tokens, given, size_in_bytes = (int(part) for part in sums[8:])
        if tokens == 0:
            raise UsageError("no token counts; look at the mask, and for labels that are ignored")
        if given not in (0, size) or (given and size_in_bytes == 0):
            raise UsageError(
                f"byte_counts were given for {given} of {size} sequences, {size_in_bytes} bytes in "
                f"all; give them for every batch or for none"
            )
        mean, mean_of_means = exact_mean(total, tokens), exact_mean(by_sequence, sequences)
        found: dict[str, Any] = {
            "cross_entropy": mean,
            "perplexity": _exp(mean),
            "cross_entropy_by_sequence": mean_of_means,
            "perplexity_by_sequence": _exp(mean_of_means),
            "nats_per_sequence": exact_mean(total, sequences),
        }
        if given:
            per_byte = exact_mean(total, size_in_bytes)
            found["bits_per_byte"] = per_byte / math.log(2)
            found["perplexity_per_byte"] = _exp(per_byte)
        return found | {"tokens": tokens, "sequences": sequences}


def _byte_counts(values: Any, sequences: int) -> Numbers:
    found = class_indices(values, what="byte_counts")
    if len(found) != sequences or (found < 0).any():
        raise UsageError(
            f"byte_counts must be {sequences} numbers from 0 up, one for each sequence, "
            f"not {found.tolist()!r:.100}"
        )
    return found


def _sum(losses: Floats) -> float:
    try:
        return math.fsum(losses)  # rounded once
    except OverflowError:
        return math.inf


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf
