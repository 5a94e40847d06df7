"""Retrieval: how high relevant documents stand in the ranking of each query."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, refuse, refuse_nan, sample, to_numpy
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.exact import exact_mean, exact_sum
from disteval.metrics.labels import of_shape, topk_of, truths_of

_MOST = 2.0**53


class Retrieval(SummableMetric):
    """The mean reciprocal rank, recall@k and nDCG@k over queries.

    A sample is one query with its documents. These are ordered by falling score; equal scores are
    ordered by position, the first first. The result is a dict of means over queries:

    - ``mrr``: 1 divided by the place of the first relevant document, counted from 1.
    - ``recall@k`` for each k: the fraction of the relevant documents that are among the first k.
    - ``ndcg@k`` for each k: the sum of relevance / log2(place + 1) over the first k documents,
      divided by the largest sum that an order can have (K. Jarvelin and J. Kekalainen, "Cumulated
      gain-based evaluation of IR techniques", 2002).
    - ``ndcg``: the same over all documents.

    A document is relevant if its relevance is greater than 0. Each query's numbers are computed in
    float64 and do not depend on how far the query is filled up; means are exact and rounded once.

    Args:
        topk: One k or several, each from 1 up; a query may have fewer documents.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(self, topk: int | Sequence[int] = (1, 10), **common: Any) -> None:
        super().__init__(**common)
        self.topk = topk_of(topk)
        at_k = [f"{name}@{k}" for name in ("recall", "ndcg") for k in self.topk]
        self._names = ["mrr", "ndcg", *at_k]

    def add(self, predictions: Any, labels: Any, mask: Any = None, *, ids: Any = None) -> None:
        """Add a batch of N queries, filled up to D documents each.

        Args:
            predictions: The scores of the documents, shape (N, D), real numbers of any framework
                and dtype.
            labels: Their relevance, shape (N, D): numbers from 0 to 2**53, one of which is greater
                than 0 for each query.
            mask: Which documents a query has, shape (N, D): truth values, 0 or 1. None: all.
            ids: The queries' global numbers, see `BaseMetric.add`.
        """
        scores = to_numpy(predictions, "predictions")
        if scores.ndim != 2:
            raise UsageError(f"predictions must be scores of shape (N, D), not {scores.shape}")
        shape = scores.shape
        gains = of_shape(labels, shape, "labels").astype(np.float64)
        counted = np.ones(shape, np.bool_) if mask is None else truths_of(mask, shape)
        gains = np.where(counted, gains, 0.0)
        wrong = ~((gains >= 0) & (gains <= _MOST))
        refuse("labels must be relevances from 0 to 2**53", gains, wrong)
        refuse_nan("predictions", scores, counted)
        without = np.flatnonzero(~(gains > 0).any(axis=1))
        if len(without):
            raise UsageError(
                f"{sample(without[0])} is a query that has no relevant document, so its recall and "
                f"nDCG are not defined; leave such queries out"
            )
        falling = -scores if scores.dtype.kind == "f" else ~scores  # which no dtype rounds
        order = np.lexsort((falling, ~counted), axis=1)
        rows = [self._of(each) for each in np.take_along_axis(gains, order, axis=1)]
        self._append(np.array(rows, dtype=np.float64).reshape(len(rows), len(self._names)), ids)

    def sums_of(self, column: Array) -> Sums:
        """Sum each number exactly: Python integers of shape (numbers, 4), see `exact_sum`."""
        return np.stack([exact_sum(each) for each in column.T])

    def from_sums(self, sums: Sums, size: int) -> dict[str, float]:
        """Divide by the number of queries and round once."""
        return {name: exact_mean(each, size) for name, each in zip(self._names, sums, strict=True)}

    def _of(self, gains: Floats) -> list[float]:
        """Return the numbers of one query, from its documents' relevance in their order."""
        places = np.flatnonzero(gains).tolist()
        parts = [gains[at] / math.log2(at + 2) for at in places]
        best = sorted(gains[places].tolist(), reverse=True)
        largest = [gain / math.log2(at + 2) for at, gain in enumerate(best)]

        def ndcg(k: int) -> float:
            return math.fsum(parts[: bisect_left(places, k)]) / math.fsum(largest[:k])

        recalls = [bisect_left(places, k) / len(places) for k in self.topk]
        return [1 / (places[0] + 1), ndcg(len(gains)), *recalls, *map(ndcg, self.topk)]
