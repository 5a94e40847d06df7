"""Mean average precision of detected boxes is that of one process, with tied scores, too."""

from typing import Any

import numpy as np
import pytest
from disteval import Evaluation, evaluate
from disteval.metrics import from_torchmetrics
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import needs
from suites.helpers.thread_world import run_ranks, values
from suites.helpers.torchvision_boxes import stand_in

pytestmark = needs("torch", "torchmetrics", "pycocotools")

PICTURES = 23


@pytest.fixture(autouse=True)
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def boxes_of(count: int, random: np.random.Generator) -> np.ndarray:
    corners = random.integers(0, 20, (count, 2))
    return np.concatenate([corners, corners + random.integers(3, 12, (count, 2))], 1).astype("f4")


def pictures() -> list[dict[str, Any]]:
    """Return what is in each picture, and what a model found in it: some of it, and other boxes."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(PICTURES):
        there = boxes_of(int(random.integers(1, 4)), random)
        seen = np.concatenate([there[random.random(len(there)) < 0.7], boxes_of(2, random)])
        found.append(
            {
                "boxes": there,
                "labels": random.integers(0, 2, len(there)),
                "seen": seen + random.integers(-1, 2, seen.shape).astype("f4"),
                "scores": random.choice([0.25, 0.5, 0.75], len(seen)).astype("f4"),
                "classes": random.integers(0, 2, len(seen)),
            }
        )
    return found


def tensors(**arrays: np.ndarray) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def detections(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [tensors(boxes=p["seen"], scores=p["scores"], labels=p["classes"]) for p in batch]


def truth(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [tensors(boxes=p["boxes"], labels=p["labels"]) for p in batch]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 5])
def test_mean_average_precision_is_that_of_one_process(size: int, batch_size: int) -> None:
    from torchmetrics.detection.mean_ap import MeanAveragePrecision

    whole = MeanAveragePrecision(class_metrics=True)
    whole.update(detections(pictures()), truth(pictures()))
    expected = whole.compute()

    def rank(backend: ThreadsDist) -> Evaluation:
        metric = from_torchmetrics(MeanAveragePrecision(class_metrics=True))
        return evaluate(
            detections, pictures(), {"map": metric}, backend, batch_size, collate=list,
            update=lambda outputs, batch: (outputs, truth(batch)), fixed_shape=False,
        )  # fmt: skip

    assert 0 < expected["map"] < 1
    for found in values(run_ranks(size, rank)):
        assert {k: v.tolist() for k, v in found.metrics["map"].items()} == {
            name: value.tolist() for name, value in expected.items()
        }
