"""Evaluate a Hugging Face data set, as a data set with a length and as a stream of shards.

python examples/huggingface_dataset.py
"""

import numpy as np
from datasets import Dataset
from disteval import Task, get_dist_backend
from disteval.metrics import Accuracy

TOPICS = ("weather", "music")
WORDS = (("rain", "sun", "wind"), ("song", "drum", "choir"))


def reviews(count: int) -> Dataset:
    """Make texts of 1 to 12 words, most of which belong to the text's topic."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, count)
    texts = [
        " ".join(WORDS[label ^ (random.random() < 0.3)][random.integers(3)] for _ in range(length))
        for label, length in zip(labels, random.integers(1, 13, count), strict=True)
    ]
    return Dataset.from_dict({"text": texts, "label": labels})


def predict(batch: dict) -> np.ndarray:
    """Count the words of each topic."""
    return np.array(
        [[sum(w in words for w in text.split()) for words in WORDS] for text in batch["text"]]
    )


def task() -> Task:
    """Return the task; a rank reads its own rows of the table only."""
    return Task(samples=reviews(500), predict=predict, metrics={"topic": Accuracy()}, batch_size=64)


def stream() -> Task:
    """Return the task over a stream of eight shards, of which a rank opens its own only."""
    return Task(
        samples=reviews(500).to_iterable_dataset(num_shards=8),
        predict=predict,
        metrics={"topic": Accuracy()},
        batch_size=64,
    )


if __name__ == "__main__":
    backend = get_dist_backend()
    print(task().evaluate(backend).metrics, stream().evaluate(backend).metrics)
