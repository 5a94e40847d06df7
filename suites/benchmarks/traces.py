"""Measure in one run what a trace costs: an event, an evaluation, and a small all-gather.

python -m suites.benchmarks.traces [--rounds 9]

Evaluations with and without a trace take turns in one process, and their CPU time is compared. The
all-gathers are those of two threads, whose every call is recorded; their ratio bounds that of a
check, in which each order carries a few of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from disteval import evaluate, traces
from disteval.metrics import Accuracy
from disteval.worlds import World

EVENTS, BATCHES, GATHERS, ORDERS = 100_000, 200, 2_000, 200


def seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this process, of which the writer of the trace is a part."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def record_events() -> None:
    """Record and write many collectives."""
    with TemporaryDirectory() as folder, traces.recording(folder) as recorder:
        names = "number", "group", "root", "bytes"
        record = recorder.series("collective", "all_gather_object", *names)
        for at in range(EVENTS):
            record(at, at + 5, at, 1, None, 512)


def evaluation() -> Callable[[], object]:
    """Return an evaluation of batches that take some milliseconds each."""
    generator = np.random.default_rng(0)
    first, second = (generator.normal(size=s).astype(np.float32) for s in ((3072, 512), (512, 10)))
    samples = np.zeros((64 * BATCHES, 3072), np.float32), np.zeros(64 * BATCHES, np.int64)

    def predict(batch: Any) -> Any:
        return np.maximum(batch @ first, 0) @ second

    def run() -> object:
        metrics = {"accuracy": Accuracy()}
        return evaluate(predict, samples, metrics, "non_dist", 64)

    return run


def gather(backend: Any) -> None:
    """Gather small objects, many times."""
    for at in range(GATHERS):
        backend.all_gather_object(at)


def give_orders(world: World) -> None:
    """Have the ranks do nothing, many times."""
    for _ in range(ORDERS):
        world.run(do_nothing)


def do_nothing(_: Any) -> None:
    """Return at once."""


def main() -> None:
    """Print medians, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    each = [seconds_of(record_events) / EVENTS * 1e6 for _ in range(rounds)]
    print(f"an event: {statistics.median(each):.2f} µs of CPU time")

    run = evaluation()
    run()
    without, recorded = [], []
    for _ in range(rounds):
        without.append(seconds_of(run))
        with TemporaryDirectory() as folder, traces.recording(folder):
            recorded.append(seconds_of(run))
    show("a batch of an evaluation", without, recorded, BATCHES)

    with (
        TemporaryDirectory() as folder,
        World("threads", 2) as plain,
        World("threads", 2, trace=folder) as traced,
    ):
        times = [
            [seconds_of(lambda world=world: world.run(gather)) for world in (plain, traced)]
            for _ in range(rounds)
        ]
        orders = [
            [seconds_of(lambda world=world: give_orders(world)) for world in (plain, traced)]
            for _ in range(rounds)
        ]
    show("an all-gather of two threads", [t[0] for t in times], [t[1] for t in times], GATHERS)
    show("an order", [t[0] for t in orders], [t[1] for t in orders], ORDERS)


def show(what: str, without: list[float], recorded: list[float], count: int) -> None:
    """Print two medians and their ratio."""
    plain, traced = statistics.median(without), statistics.median(recorded)
    print(
        f"{what}: {plain / count * 1e6:.1f} µs without a trace, {traced / count * 1e6:.1f} µs with "
        f"one, ratio {traced / plain:.3f}"
    )


if __name__ == "__main__":
    main()
