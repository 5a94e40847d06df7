"""Side by side in one run: the evaluation loop as it is usually written, and ours.

python -m suites.benchmarks.peers [--samples 2000] [--rounds 5]

Every contestant evaluates the same pictures with the same weights and as many threads. They take
turns, round after round, so that a machine that slows down slows all of them; the table gives
medians, and the ratio to the first. The loops return how many samples are right, and must agree.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from harness import evaluate, get_dist_backend
from harness.datasets import ArrayDataset, load_cifar10, load_embedded
from harness.metrics import Accuracy
from harness.models import default_weights
from harness.models.preprocess import preprocess
from harness.models.resnet18_torch import build, make_predict
from harness.worlds import World

BATCH_SIZE = 256
Contestant = Callable[[], int]


class Pictures(Dataset):  # type: ignore[type-arg]
    """One picture at a time, normalised when it is asked for, as tutorials do."""

    def __init__(self, dataset: ArrayDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = preprocess(self.dataset.images[index : index + 1])[0]
        return torch.from_numpy(image), int(self.dataset.labels[index])


def usual_loop(dataset: ArrayDataset, model: torch.nn.Module, batch_size: int) -> int:
    """A DataLoader, a forward pass, and a verdict on each sample."""
    right = []
    with torch.no_grad():
        for images, labels in DataLoader(Pictures(dataset), batch_size):
            predicted = model(images).argmax(dim=1)
            right += [int(p) == int(label) for p, label in zip(predicted, labels, strict=True)]
    return sum(right)


def ours(dataset: ArrayDataset) -> int:
    """`harness.evaluate` in this process."""
    metrics = {"accuracy": Accuracy(counts=True)}
    backend = get_dist_backend("non_dist")
    result = evaluate(make_predict(default_weights()), dataset, metrics, backend, BATCH_SIZE)
    return int(result.metrics["accuracy"]["correct_top1"])


def forward_only(dataset: ArrayDataset) -> int:
    """The bare forward loop: what no evaluation can be faster than."""
    predict = make_predict(default_weights())
    scores = [
        predict(dataset.images[start : start + BATCH_SIZE])
        for start in range(0, len(dataset), BATCH_SIZE)
    ]
    return int((torch.cat(scores).argmax(dim=1).numpy() == dataset.labels).sum())


def on_rank(backend: object, dataset: ArrayDataset) -> int:
    """`harness.evaluate` on one rank of a world that is already there."""
    metrics = {"accuracy": Accuracy(counts=True)}
    predict = make_predict(default_weights())
    result = evaluate(predict, dataset, metrics, backend, BATCH_SIZE)  # type: ignore[arg-type]
    return int(result.metrics["accuracy"]["correct_top1"])


def main() -> None:
    """Let the contestants take turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    root = os.environ.get("CIFAR10_ROOT")
    dataset = load_cifar10(root) if root else load_embedded()
    dataset = ArrayDataset(
        dataset.name, dataset.images[: options.samples], dataset.labels[: options.samples],
        dataset.classes,
    )  # fmt: skip
    model = build(default_weights())
    with World("torch_cpu", 2) as world:
        contestants: dict[str, Contestant] = {
            "usual loop, batch size 1": lambda: usual_loop(dataset, model, 1),
            "usual loop, batch size 256": lambda: usual_loop(dataset, model, BATCH_SIZE),
            "disteval, 1 process": lambda: ours(dataset),
            "disteval, 2 gloo ranks": lambda: world.run(on_rank, dataset, dataset)[0],
            "forward passes alone": lambda: forward_only(dataset),
        }
        load = os.getloadavg()[0]
        print_table(dataset, race(contestants, len(dataset), options.rounds), load)


def race(
    contestants: Mapping[str, Contestant], samples: int, rounds: int
) -> dict[str, list[float]]:
    """Images per second of each contestant in each round, after one round to warm up."""
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    answers = {name: run() for name, run in contestants.items()}
    if len(set(answers.values())) > 1:
        raise SystemExit(f"the contestants do not agree on the right samples: {answers}")
    for _ in range(rounds):
        for name, run in contestants.items():
            begin = time.perf_counter()
            run()
            speeds[name].append(samples / (time.perf_counter() - begin))
    return speeds


def print_table(dataset: ArrayDataset, speeds: Mapping[str, list[float]], load: float) -> None:
    """Medians, the spread, and the ratio to the first contestant, as Markdown."""
    first = statistics.median(next(iter(speeds.values())))
    print(
        f"{len(dataset)} pictures of {dataset.name}; {os.cpu_count()} cores, "
        f"load {load:.2f} before; Python {platform.python_version()}, "
        f"torch {torch.__version__}, NumPy {np.__version__}"
    )
    print("\n| loop | images/s (median) | min | max | ratio |\n|---|---:|---:|---:|---:|")
    for name, values in speeds.items():
        middle = statistics.median(values)
        print(
            f"| {name} | {middle:.0f} | {min(values):.0f} | {max(values):.0f} "
            f"| {middle / first:.1f} |"
        )


if __name__ == "__main__":
    main()
