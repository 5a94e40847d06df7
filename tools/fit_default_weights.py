"""Fit the last layer of the default weights, and write default_head.safetensors of disteval.models.

Ridge regression from the random trunk's features to one column a class, in closed form. The
strength of the ridge is the one that does best on a fifth of the training split, held out.
"""

from pathlib import Path

import numpy as np
import torch
from disteval.data import load_embedded
from disteval.models import default_weights, random_trunk, save_weights
from disteval.models.resnet18_torch import build, make_predict, preprocess

HEAD = Path(__file__).parents[1] / "harness" / "disteval" / "models" / "default_head.safetensors"
HELD_OUT = 5
RIDGES = [10.0**exponent for exponent in range(-4, 5)]


def features(images: np.ndarray) -> np.ndarray:
    """Return the trunk's features, float64 of shape (N, 512)."""
    head = {"fc.weight": np.zeros((10, 512), np.float32), "fc.bias": np.zeros(10, np.float32)}
    model = build(random_trunk() | head)
    with torch.inference_mode():
        parts = [
            model.features(preprocess(torch.from_numpy(images[i : i + 200])))
            for i in range(0, len(images), 200)
        ]
    return torch.cat(parts).double().numpy()


def fit(inputs: np.ndarray, labels: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (10, 512) and bias (10,) of the ridge regression on standardised features."""
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-12
    scaled = (inputs - mean) / spread
    targets = np.eye(10)[labels] - 0.1
    gram = scaled.T @ scaled + ridge * len(scaled) * np.eye(scaled.shape[1])
    weight = np.linalg.solve(gram, scaled.T @ (targets - targets.mean(axis=0))).T / spread
    return weight, targets.mean(axis=0) - weight @ mean


def main() -> None:
    """Choose the ridge, fit on the whole training split, write the file, and print the accuracy."""
    train = load_embedded("train")
    inputs = features(train.images)
    held = np.arange(len(train)) % HELD_OUT == 0
    right = {}
    for ridge in RIDGES:
        weight, bias = fit(inputs[~held], train.labels[~held], ridge)
        predicted = (inputs[held] @ weight.T + bias).argmax(axis=1)
        right[ridge] = float((predicted == train.labels[held]).mean())
    best = max(right, key=lambda ridge: right[ridge])
    weight, bias = fit(inputs, train.labels, best)
    head = {"fc.weight": weight.astype(np.float32), "fc.bias": bias.astype(np.float32)}
    save_weights(HEAD, head)

    test = load_embedded("test")
    predict = make_predict(default_weights())
    scores = torch.cat(
        [predict(test.images[i : i + 250]) for i in range(0, len(test), 250)]
    ).numpy()
    top = np.sort(scores, axis=1)
    print(f"ridge {best:g} of held-out top-1 {right}")
    print(f"test top-1 {(scores.argmax(axis=1) == test.labels).mean():.4f}")
    print(f"smallest margin between the two best scores {(top[:, -1] - top[:, -2]).min():.3g}")


if __name__ == "__main__":
    main()
