"""Evaluate ResNet-18 over CIFAR-10 in one process.

python examples/cifar10_eval_single.py
"""

import os

from disteval.data import load_cifar10, load_embedded
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.models.resnet18_torch import make_predict

BATCH_SIZE = 256


def main() -> None:
    """Predict every picture once and print the accuracy."""
    root = os.environ.get("CIFAR10_ROOT")
    dataset = load_cifar10(root) if root else load_embedded()
    predict = make_predict(default_weights())
    accuracy = Accuracy(topk=(1, 3))
    for start in range(0, len(dataset), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        accuracy.add(predict(dataset.images[batch]), dataset.labels[batch])
    print(accuracy.compute(size=len(dataset)))


if __name__ == "__main__":
    main()
