"""Measure evaluation in leases beside the static one.

python -m suites.benchmarks.leases [--rounds 5] [--images 1024]

Three questions. What leases cost where nothing goes wrong: ResNet-18 on CIFAR-10 (``CIFAR10_ROOT``)
by one rank, in CPU time, in which the lender's thread and the ledger count. What they save where
batches take unequal times, and where one of three ranks is slow: there a batch is a sleep, so that
a busy machine changes little, and ranks are threads. Both schedules take turns, round after round,
and every result must be the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from disteval import evaluate
from disteval.metrics import Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.thread_world import run_ranks, values

RANKS = 3
BATCHES = 240
BATCH_SECONDS = 0.02
SLOWER = 4

Arguments = dict[str, Any]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1024)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n")
    for table in (sleeping(options.rounds), resnet(options.rounds, options.images)):
        for line in table:
            print(line, flush=True)
        print()


def sleeping(rounds: int) -> Iterator[str]:
    """Yield how long ranks take whose batches are sleeps, as Markdown."""
    yield f"| {RANKS} ranks, {BATCHES} batches | static, s | leases, s | static to leases |"
    yield "|---|---:|---:|---:|"
    random = np.random.default_rng(0)
    lengths = random.uniform(1, 10, BATCHES)
    even = np.full(BATCHES, 5.5)
    cases: dict[str, tuple[Any, list[int], Arguments]] = {
        "equal batches": (even, [1] * RANKS, {}),
        f"one rank {SLOWER} times slower": (even, [1] * (RANKS - 1) + [SLOWER], {}),
        "tenfold lengths, at random": (lengths, [1] * RANKS, {}),
        "tenfold lengths, each rank a part of a sorted file": (
            np.sort(lengths), [1] * RANKS, {"mode": "contiguous"},
        ),
    }  # fmt: skip
    timed(even[:RANKS], [1] * RANKS, {"schedule": "leases"})  # imports what leases need
    for name, (costs, factors, arguments) in cases.items():
        times: dict[str, list[float]] = {"static": [], "leases": []}
        for _ in range(rounds):
            results = []
            for schedule, found in times.items():
                seconds, result = timed(costs, factors, {**arguments, "schedule": schedule})
                found.append(seconds)
                results.append(result)
            assert results[0] == results[1]
        static, leases = (statistics.median(found) for found in times.values())
        ratio = statistics.median(
            one / other for one, other in zip(*times.values(), strict=True)
        )  # fmt: skip
        yield f"| {name} | {static:.2f} | {leases:.2f} | {ratio:.2f} |"


def timed(costs: Any, factors: list[int], arguments: Arguments) -> tuple[float, Any]:
    """Return the seconds of one evaluation whose batches, of one sample each, are sleeps."""
    scale = BATCH_SECONDS / 5.5

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            time.sleep(float(batch.sum()) * scale * factors[backend.rank])
            return batch

        begin = time.perf_counter()
        update = {"mean": lambda outputs, _: (outputs,)}
        found = evaluate(predict, costs, {"mean": Mean()}, backend, 1, update=update, **arguments)
        return time.perf_counter() - begin, found.metrics

    found = values(run_ranks(len(factors), rank))
    return max(seconds for seconds, _ in found), found[0][1]


def resnet(rounds: int, images: int) -> Iterator[str]:
    """Yield the CPU time of one rank that evaluates ResNet-18, as Markdown."""
    import torch
    from disteval.cli.eval_resnet18 import ResNet18
    from disteval.default_backend import get_dist_backend

    torch.set_num_threads(1)
    data = Path(os.environ["CIFAR10_ROOT"]) if "CIFAR10_ROOT" in os.environ else None
    task = ResNet18("torch", "cpu", data, None, (1, 5)).make(get_dist_backend("non_dist"))
    yield f"| ResNet-18, {images} images, 1 rank | CPU s (median) | to static | wall to static |"
    yield "|---|---:|---:|---:|"
    with tempfile.TemporaryDirectory() as folder:
        contestants: dict[str, Callable[[int], Arguments]] = {
            "static": lambda turn: {},
            "leases": lambda turn: {"schedule": "leases"},
            "leases, with a ledger": lambda turn: {
                "schedule": "leases", "ledger": Path(folder) / str(turn),
            },
        }  # fmt: skip
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        wall: dict[str, list[float]] = {name: [] for name in contestants}
        results = []
        for turn in range(rounds + 1):  # the first one warms up
            for name, arguments in contestants.items():
                begin = time.process_time(), time.perf_counter()
                found = evaluate(
                    task.predict, task.samples, task.metrics, "non_dist", 32, limit=images,
                    **arguments(turn),
                )  # fmt: skip
                results.append(found.metrics)
                if turn:
                    cpu[name].append(time.process_time() - begin[0])
                    wall[name].append(time.perf_counter() - begin[1])
        assert all(each == results[0] for each in results)
    for name in contestants:
        ratios = [
            statistics.median(a / b for a, b in zip(kind[name], kind["static"], strict=True))
            for kind in (cpu, wall)
        ]
        yield f"| {name} | {statistics.median(cpu[name]):.2f} | {ratios[0]:.3f} | {ratios[1]:.3f} |"


if __name__ == "__main__":
    main()
