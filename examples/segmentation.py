"""Measure the mean IoU of a segmentation of made pictures: discs and squares on a noisy ground.

python examples/segmentation.py
"""

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import Segmentation

CLASSES, SIDE, IGNORED = ("ground", "disc", "square"), 48, 255


class Shapes:
    """A data set of 200 pictures and masks, each drawn from its own number when it is read."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        random = np.random.default_rng(index)
        y, x = np.mgrid[:SIDE, :SIDE]
        mask = np.zeros((SIDE, SIDE), np.uint8)
        for label in (1, 2):
            down, right = random.integers(10, SIDE - 10, 2)
            distances = np.abs(y - down), np.abs(x - right)
            disc = np.hypot(*distances) < 8
            mask[disc if label == 1 else np.maximum(*distances) < 6] = label
        picture = mask + random.normal(0, 0.8, mask.shape).astype(np.float32)
        mask[[0, -1]] = IGNORED  # the annotators left out the edge
        return picture, mask


def predict(pictures: np.ndarray) -> np.ndarray:
    """Return the class (B, H, W) whose value is nearest to the mean of the 5 x 5 places around."""
    padded = np.pad(pictures, ((0, 0), (2, 2), (2, 2)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
    return np.clip(np.rint(windows.mean(axis=(-2, -1))), 0, 2).astype(np.int64)


def task() -> Task:
    """Return the task."""
    return Task(
        samples=Shapes(),
        predict=predict,
        metrics={"shapes": Segmentation(len(CLASSES), ignore_label=IGNORED)},
        batch_size=32,
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
