"""Evaluate a text classifier: texts are filled up to the longest of their batch.

``collate`` makes a batch of a list of samples, and texts of like length share a batch. ``Accuracy``
gets the labels because the batch has a key ``label``.

python examples/text_classifier.py
"""

from typing import Any

import torch
from disteval import ByLength, Task, get_dist_backend
from disteval.metrics import Accuracy
from torch.nn.utils.rnn import pad_sequence


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Fill texts up to the longest one."""
    texts = [torch.tensor(sample["input_ids"]) for sample in samples]
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"tokens": pad_sequence(texts, batch_first=True), "label": labels}


def task() -> Task:
    """Return the task: texts of up to 40 tokens, in which every third one tells the label."""
    dice = torch.Generator().manual_seed(0)
    texts = []
    for n in torch.randint(1, 40, (203,), generator=dice).tolist():
        tokens = torch.randint(1, 99, (n,), generator=dice).tolist()
        texts.append({"input_ids": tokens, "label": n % 3})
    for text in texts:
        text["input_ids"][::3] = [96 + text["label"]] * len(text["input_ids"][::3])
    embedding = torch.nn.Embedding(99, 3, padding_idx=0)  # gives 0 for a padded place
    embedding.weight.data[1:] = torch.eye(3).repeat(33, 1)[1:]

    @torch.inference_mode()
    def predict(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return embedding(batch["tokens"]).sum(dim=1)

    return Task(
        samples=texts,
        predict=predict,
        metrics={"accuracy": Accuracy()},
        collate=collate,
        by_length=ByLength(),
        batch_size=16,
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
