"""Measure in one run how long several libraries take to compute an accuracy on two ranks.

python -m suites.benchmarks.counting [--backend torch_cpu] [--rounds 9]

Ours for 1e3 to 1e6 samples a rank, mmeval's for 25,000 where it is installed (over torch alone:
under MPICH it takes each rank for a world of its own), an all-gather of a small object, and the
floor, to which the ratios are: the library's own all-gather of 64 bytes. Every result is verified;
the bytes are those that a rank sends.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from disteval import frames
from disteval.contract import BaseDistBackend
from disteval.metrics import Accuracy
from disteval.worlds import World

from suites.benchmarks.asv._ranks import CountingBackend, times_of
from suites.benchmarks.objects import raw_of, without_log

WORLD_SIZE = 2
SIZES = (1_000, 10_000, 100_000, 1_000_000)
MMEVAL_SIZE = 25_000
BATCH_SIZE = 250
FLOOR = "all-gather of 64 bytes"


def main() -> None:
    """Measure on each rank, and print the time of the slowest rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="torch_cpu")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n")
    print("\n".join(table(options.backend, options.rounds)))


def table(backend: str, rounds: int) -> Iterator[str]:
    """Measure on ranks that are started here, and yield the table as Markdown."""
    with World(backend, WORLD_SIZE) as world:
        ranks = world.run(measure, *[rounds] * WORLD_SIZE, timeout=600)
    rows = {}
    for row in zip(*ranks, strict=True):
        name, size, _, sent = row[0]
        by_round = zip(*(times for _, _, times, _ in row), strict=True)
        rows[name, size, sent] = [1e6 * max(times) for times in by_round]
    floor = next(statistics.median(found) for (name, *_), found in rows.items() if name == FLOOR)
    title = f"{backend}, `Accuracy.compute(size=…)` on two ranks"
    yield f"| {title} | samples of each rank | µs (median) | min | max | ratio | bytes |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for (name, size, sent), found in rows.items():
        middle = statistics.median(found)
        figures = f"{middle:.1f} | {min(found):.1f} | {max(found):.1f} | {middle / floor:.1f}"
        yield f"| {name} | {size} | {figures} | {sent} |"


def measure(backend: BaseDistBackend, rounds: int) -> list[tuple[str, int, list[float], int]]:
    """Yield a row for each library: name, samples of a rank, seconds of each round, bytes sent."""
    counting, ours = CountingBackend(backend), without_log(backend)
    rows = []
    for size in SIZES:
        accuracy = Accuracy(dist_backend=counting)
        fill(accuracy, size, backend.rank)
        counting.sent = 0
        verify(accuracy.compute(2 * size - 1), size)
        sent = counting.sent
        timed = Accuracy(dist_backend=ours)
        fill(timed, size, backend.rank)
        compute = lambda metric=timed, size=size: metric.compute(size=2 * size - 1)  # noqa: E731
        rows.append(("disteval", size, time_it(backend, compute, rounds, 50), sent))
    raw, buffer = raw_of(backend), np.zeros(64, dtype=np.uint8)
    numbers = (0, 1, 2)
    gather = time_it(backend, lambda: ours.all_gather_object(numbers), rounds, 50)
    rows.append(("all_gather_object of three numbers", 0, gather, len(frames.encode(numbers))))
    floor = time_it(backend, lambda: raw(buffer), rounds, 50)
    rows.append((FLOOR, 0, floor, len(buffer)))
    if type(ours).__name__ == "TorchCPUDist" and importlib.util.find_spec("mmeval"):
        rows.append(mmevals(backend, min(rounds, 3)))
    return rows


def mmevals(backend: BaseDistBackend, rounds: int) -> tuple[str, int, list[float], int]:
    """Measure mmeval with torch tensors, as a model returns them."""
    import mmeval
    import torch

    accuracy = mmeval.Accuracy(dist_backend="torch_cpu")
    fill(accuracy, MMEVAL_SIZE, backend.rank, torch.from_numpy)
    size = WORLD_SIZE * MMEVAL_SIZE - 1
    sent = len(frames.encode(accuracy._results))
    compute = lambda: accuracy.compute(size=size)  # noqa: E731
    verify({"top1": compute()["top1"]}, MMEVAL_SIZE)
    return "mmeval", MMEVAL_SIZE, time_it(backend, compute, rounds, 1), sent


def fill(
    metric: Any, size: int, rank: int, made: Callable[[Any], Any] = lambda array: array
) -> None:
    """Add scores of ten classes: right on rank 0, wrong on rank 1."""
    for start in range(0, size, BATCH_SIZE):
        labels = np.arange(start, min(start + BATCH_SIZE, size)) % 10
        scores = np.eye(10, dtype=np.float32)[(labels + rank) % 10]
        metric.add(made(scores), made(labels))


def verify(found: dict[str, float], size: int) -> None:
    """Check the accuracy; the last sample of rank 1 is padding."""
    if abs(found["top1"] - size / (2 * size - 1)) > 1e-6:
        raise SystemExit(f"{found} is not the accuracy of {size} samples a rank")


def time_it(
    backend: BaseDistBackend, call: Callable[[], Any], rounds: int, calls: int
) -> list[float]:
    """Return the seconds of one call in each round; its result is verified elsewhere."""

    def round_() -> None:
        for _ in range(calls):
            call()

    return [seconds / calls for seconds in times_of(backend, round_, lambda _: None, rounds)]


if __name__ == "__main__":
    main()
