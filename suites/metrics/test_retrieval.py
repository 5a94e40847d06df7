"""MRR, recall@k and nDCG@k against their formulas, scikit-learn, torchmetrics and other worlds."""

import math
from typing import Any

import numpy as np
import pytest
from disteval.metrics import Retrieval
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.test_exact import mean_of

DRAWN = st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1 << 30))


def drawn(queries: int, documents: int, seed: int) -> tuple[Any, Any, Any]:
    """Return scores of which some are equal, relevances from 0 to 3, and a mask."""
    random = np.random.default_rng(seed)
    scores = random.integers(-3, 4, (queries, documents)).astype(np.float32)
    relevance = random.integers(0, 4, (queries, documents))
    relevance[:, 0] += 1
    return scores, relevance, np.arange(documents) < random.integers(1, documents + 1, (queries, 1))


def by_formula(scores: Any, relevance: Any, mask: Any, k: int) -> list[float]:
    rows = []
    for query in range(len(scores)):
        documents = [at for at in range(len(mask[query])) if mask[query][at]]
        documents.sort(key=lambda at: (-scores[query][at], at))
        gains = [float(relevance[query][at]) for at in documents]
        best = sorted(gains, reverse=True)

        def dcg(of: list[float]) -> float:
            return math.fsum(gain / math.log2(place + 1) for place, gain in enumerate(of, 1))

        first = next(place for place, gain in enumerate(gains, 1) if gain)
        recall = sum(map(bool, gains[:k])) / sum(map(bool, gains))
        rows.append([1 / first, dcg(gains) / dcg(best), recall, dcg(gains[:k]) / dcg(best[:k])])
    return [mean_of(list(column)) for column in zip(*rows, strict=True)]


@given(DRAWN, st.integers(1, 8))
def test_it_agrees_with_its_formula(of: tuple[int, int, int], k: int) -> None:
    arrays = drawn(*of)
    found = Retrieval(k, dist_backend="non_dist")(*arrays)
    assert list(found) == ["mrr", "ndcg", f"recall@{k}", f"ndcg@{k}"]
    assert list(found.values()) == by_formula(*arrays, k)


@given(DRAWN)
def test_it_is_the_same_however_far_it_is_filled_up(of: tuple[int, int, int]) -> None:
    arrays = drawn(*of)
    filled = [np.pad(array, [(0, 0), (0, 9)]) for array in arrays]
    search = Retrieval((1, 2), dist_backend="non_dist")
    assert search(*filled) == search(*arrays)


@needs("sklearn", "torch", "torchmetrics")
def test_it_agrees_with_scikit_learn_and_torchmetrics() -> None:
    from sklearn.metrics import ndcg_score

    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    random = np.random.default_rng(0)
    # torchmetrics takes a document whose score is not above 0 for one that was not found.
    scores, relevance = random.random((30, 12)), random.integers(0, 4, (30, 12))
    relevance[:, 0] = 1
    found = Retrieval((3, 50), dist_backend="non_dist")(scores, relevance)
    assert found["ndcg"] == pytest.approx(ndcg_score(relevance, scores), rel=1e-12)
    assert found["ndcg@3"] == pytest.approx(ndcg_score(relevance, scores, k=3), rel=1e-12)
    assert (found["ndcg@50"], found["recall@50"]) == (found["ndcg"], 1.0)
    tensors = torch.tensor(scores).flatten(), torch.tensor(relevance > 0).flatten()
    indexes = torch.arange(30).repeat_interleave(12)
    for name, oracle in (
        ("mrr", torchmetrics.retrieval.RetrievalMRR()),
        ("recall@3", torchmetrics.retrieval.RetrievalRecall(top_k=3)),
    ):
        assert found[name] == pytest.approx(oracle(*tensors, indexes=indexes).item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.uint64, np.float16])
def test_scores_are_compared_in_their_own_dtype(dtype: Any) -> None:
    most = 1 if dtype in (np.bool_, np.float16) else np.iinfo(dtype).max
    scores = np.array([[most - 1, most]], dtype)
    assert Retrieval(1, dist_backend="non_dist")(scores, [[0, 1]])["mrr"] == 1.0
