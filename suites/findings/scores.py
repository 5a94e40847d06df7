"""Show what a metric of torchmetrics makes of scores that are not above zero."""

from __future__ import annotations

import torch
from torchmetrics.retrieval import RetrievalRecall


def main() -> None:
    """Print the recall of a query, of which both relevant documents are the first two."""
    scores, relevant = torch.tensor([2.0, -1.0, -3.0]), torch.tensor([True, True, False])
    query = torch.zeros(3, dtype=torch.long)
    below, above = (
        float(RetrievalRecall(top_k=2)(each, relevant, indexes=query))
        for each in (scores, scores + 10)
    )
    print(f"{below} instead of {above}")


if __name__ == "__main__":
    main()
