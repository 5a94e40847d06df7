"""An evaluation on hundreds of ranks is exact and gathers one block of each three times."""

from typing import Any

import numpy as np
from disteval import evaluate, frames
from disteval.data import ArrayDataset
from disteval.metrics import Accuracy, ConfusionMatrix, Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import Counting, run_ranks, values

WORLD_SIZE = 200
SIZE = 1_201
CLASSES = 3


class Scores(Mean):
    """A metric of the mean score of the true class."""

    def add(self, scores: Any, labels: Any) -> None:
        super().add(scores[np.arange(len(labels)), labels])


def predict(images: Any) -> Any:
    index = images[:, 0, 0, 0].astype(int) + 256 * images[:, 0, 0, 1].astype(int)
    scores = np.zeros((len(images), CLASSES))
    scores[np.arange(len(images)), index % 7 % CLASSES] = 1 / (1 + index)
    return scores


def test_200_ranks_say_what_one_says_and_each_sends_a_block_three_times() -> None:
    index = np.arange(SIZE)
    images = np.zeros((SIZE, 3, 1, 2), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = index % 256, index // 256
    dataset = ArrayDataset("numbered", images, index % CLASSES, ("a", "b", "c"))

    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        metrics = {"right": Accuracy(counts=True), "score": Scores(), "all": ConfusionMatrix(3)}
        found = evaluate(predict, dataset, metrics, counting, 2)
        matrix = found.metrics.pop("all")["matrix"].tolist()
        return found.metrics, matrix, found.padded, found.coverage, counting.sent

    (alone,) = values(run_ranks(1, rank))
    assert alone[3:] == ("exact", [])
    everywhere = values(run_ranks(WORLD_SIZE, rank))
    sent = [frames.BLOCK_BYTES] * 3
    assert everywhere == [(*alone[:2], -SIZE % WORLD_SIZE, alone[3], sent)] * WORLD_SIZE
