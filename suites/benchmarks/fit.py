"""Measure training throughput of the estimator's ``fit`` and of a plain DDP loop.

python -m suites.benchmarks.fit [--world-size 2] [--batches 15] [--rounds 5]

Both train the same ResNet-18 on the same embedded pictures, with the same optimizer, batch size,
threads and number of processes. They take turns, round after round; the figures are medians, of
the whole call as a user sees it, and the ratio is the median of each round's.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from disteval.cli.fit_resnet18 import Classifier, create_runner, load
from disteval.estimator import Estimator
from disteval.worlds import World
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 64
LR = 0.01


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--batches", type=int, default=15, help="of each rank, in a turn")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    samples = options.batches * options.world_size * BATCH_SIZE
    config = {"lr": LR, "epochs": 10_000, "work_dir": None, "samples": samples}
    with (
        World("torch_cpu", options.world_size, timeout=600) as world,
        Estimator(
            create_runner, config, "local", options.world_size, timeout=600, progress=False
        ) as estimator,
    ):
        world.run(prepare, *[samples] * options.world_size)
        epochs = 0

        def fit() -> None:
            nonlocal epochs
            epochs += 1
            estimator.fit([train_loader], [("train", 1)], epochs)

        def bare() -> None:
            world.run(train)

        for name, rate in measure({"bare loop": bare, "fit": fit}, samples, options.rounds):
            print(f"{name:10} {rate}")


def measure(
    contestants: Mapping[str, Callable[[], None]], samples: int, rounds: int
) -> list[tuple[str, str]]:
    """Let the loops take turns, and yield a line for each with its median ratio to the first."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        # Each goes first in every other round, so that a machine that slows down favours none.
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            contestants[name]()
            if turn > 0:  # the first round warms up
                rates[name].append(samples / (time.perf_counter() - begin))
    first = next(iter(rates.values()))
    return [
        (
            name,
            f"{statistics.median(found):7.1f} images/s (from {min(found):.1f} to {max(found):.1f})"
            f"  x {statistics.median(a / b for a, b in zip(found, first, strict=True)):.3f}",
        )
        for name, found in rates.items()
    ]


def train_loader(config: Mapping[str, Any]) -> DataLoader:
    """Create the loader of one turn's pictures for the estimator."""
    return DataLoader(_pictures(config["samples"]), BATCH_SIZE, shuffle=True)


_bare: dict[str, Any] = {}


def prepare(backend: Any, samples: int) -> None:
    """Build the model, the optimizer and the data of one rank of the plain loop."""
    model = Classifier().to(memory_format=torch.channels_last)
    pictures = _pictures(samples)
    sampler = DistributedSampler(pictures, shuffle=True)
    _bare["loader"] = DataLoader(pictures, BATCH_SIZE, sampler=sampler)
    _bare["model"] = DistributedDataParallel(Step(model))
    _bare["optimizer"] = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4
    )


def train(backend: Any) -> float:
    """Train for one epoch in a loop without a library."""
    total = torch.zeros(())
    _bare["model"].train()
    for batch in _bare["loader"]:
        loss = _bare["model"](batch)
        _bare["optimizer"].zero_grad()
        loss.backward()
        _bare["optimizer"].step()
        total += loss.detach()
    return float(total)


class Step(torch.nn.Module):
    """A module that computes the loss of the model, for DistributedDataParallel."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model.train_step(batch, None)["loss"]


def _pictures(samples: int) -> TensorDataset:
    images, labels = load(None, "train").tensors
    return TensorDataset(images[:samples], labels[:samples])


if __name__ == "__main__":
    # By its name, under which ranks find what `prepare` left there.
    importlib.import_module("suites.benchmarks.fit").main()
