"""Evaluate rankings: a sample is a query, and queries have different numbers of documents.

The default ``collate`` leaves fields of different lengths as lists of arrays. This one fills them
up, with a mask of the documents that are there, and ``update`` gives the mask to the metric.

python examples/ranking.py
"""

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import Retrieval


def collate(queries: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Fill queries up to the one with the most documents."""
    most = max(len(query["relevance"]) for query in queries)

    def filled(field: str) -> np.ndarray:
        return np.stack([np.pad(q[field], (0, most - len(q[field]))) for q in queries])

    lengths = np.array([[len(query["relevance"])] for query in queries])
    mask = np.arange(most) < lengths
    return {"features": filled("features"), "relevance": filled("relevance"), "mask": mask}


def task() -> Task:
    """Return the task: 83 queries with up to 30 documents each."""
    random = np.random.default_rng(0)
    queries = []
    for documents in random.integers(3, 30, 83):
        relevance = random.integers(0, 9, documents) // 7
        relevance[random.integers(documents)] = 3
        scores = relevance + random.normal(size=documents)
        queries.append({"features": scores, "relevance": relevance})
    return Task(
        samples=queries,
        predict=lambda batch: batch["features"],
        metrics={"search": Retrieval(topk=(1, 5))},
        collate=collate,
        update=lambda scores, batch: (scores, batch["relevance"], batch["mask"]),
        batch_size=16,
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
