"""Measure evaluation in leases beside the static one.

python -m suites.benchmarks.leases [--rounds 5] [--images 10000] [--only NAME]

Three questions, a table each. What leases cost where nothing goes wrong (``overhead``): ResNet-18
on CIFAR-10 (``CIFAR10_ROOT``) by one rank, in CPU time, in which the lender's thread and the ledger
count. What they save where one of three ranks is slow (``slowed``): ranks are processes that
compute ResNet-18, and one of them is stopped for three quarters of each 0.1 seconds, as cpulimit
does it. What they save where batches take unequal times (``lengths``): there a batch is a sleep, so
that a busy machine changes little, and ranks are threads. Both schedules take turns, round after
round, and every result must be the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from disteval import evaluate
from disteval.cli.eval_resnet18 import ResNet18
from disteval.contract import BaseDistBackend
from disteval.default_backend import get_dist_backend
from disteval.metrics import Mean
from disteval.worlds import World
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks, values

RANKS = 3
BATCHES = 240
BATCH_SECONDS = 0.02
SLOWER = 4
SOURCES = 6
_TURN_SECONDS = 0.1

Arguments = dict[str, Any]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=10_000)
    tables = {"overhead": overhead, "slowed": slowed, "lengths": lengths_differ}
    parser.add_argument("--only", choices=tables)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n")
    for name in tables if options.only is None else [options.only]:
        for line in tables[name](options.rounds, options.images):
            print(line, flush=True)
        print()


def documents() -> Any:
    """Return the lengths of batches of documents, from 1 to 10, in the order of their sources.

    Each source has an average of its own, and its documents are about as long.
    """
    random = np.random.default_rng(0)
    averages = random.permutation(np.geomspace(1, 10, SOURCES))
    found = [random.normal(mean, 0.2 * mean, BATCHES // SOURCES) for mean in averages]
    return np.clip(np.concatenate(found), 1, 10)


def lengths_differ(rounds: int, _images: int) -> Iterator[str]:
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
        "documents by source, each rank every third": (documents(), [1] * RANKS, {}),
        "documents by source, each rank a third of the file": (
            documents(), [1] * RANKS, {"mode": "contiguous"},
        ),
        "a sorted file, each rank a third of it": (
            np.sort(lengths), [1] * RANKS, {"mode": "contiguous"},
        ),
    }  # fmt: skip
    timed(even[:RANKS], [1] * RANKS, {}, {"schedule": "leases"})  # imports what leases need
    for name, (costs, factors, arguments) in cases.items():
        yield f"| {name} | {compared(rounds, partial(timed, costs, factors, arguments))} |"


def compared(rounds: int, run: Callable[[Arguments], tuple[float, Any]]) -> str:
    """Return both schedules' median seconds, and the median of their ratios, as Markdown.

    Args:
        rounds: How often each of them runs.
        run: Called with the schedule; returns the seconds and the result.
    """
    times: dict[str, list[float]] = {"static": [], "leases": []}
    for _ in range(rounds):
        results = []
        for schedule, found in times.items():
            seconds, result = run({"schedule": schedule})
            found.append(seconds)
            results.append(result)
        assert results[0] == results[1]
    static, leases = (statistics.median(found) for found in times.values())
    ratio = statistics.median(one / other for one, other in zip(*times.values(), strict=True))
    return f"{static:.2f} | {leases:.2f} | {ratio:.2f}"


def timed(
    costs: Any, factors: list[int], arguments: Arguments, schedule: Arguments
) -> tuple[float, Any]:
    """Return the seconds of one evaluation whose batches, of one sample each, are sleeps."""
    scale = BATCH_SECONDS / 5.5

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            time.sleep(float(batch.sum()) * scale * factors[backend.rank])
            return batch

        begin = time.perf_counter()
        update = {"mean": lambda outputs, _: (outputs,)}
        found = evaluate(
            predict, costs, {"mean": Mean()}, backend, 1, update=update, **arguments, **schedule
        )
        return time.perf_counter() - begin, found.metrics

    found = values(run_ranks(len(factors), rank))
    return max(seconds for seconds, _ in found), found[0][1]


@contextmanager
def stopped_in_turns(pid: int, slower: int) -> Iterator[None]:
    """Let a process run for one part of the time in so many meanwhile."""
    over = threading.Event()

    def take_turns() -> None:
        running = _TURN_SECONDS / slower
        while slower > 1 and not over.wait(running):
            os.kill(pid, signal.SIGSTOP)
            over.wait(_TURN_SECONDS - running)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def task_of(backend: BaseDistBackend) -> Any:
    """Return the evaluation of ResNet-18 on one rank, which computes in one thread."""
    import torch

    torch.set_num_threads(1)
    data = Path(os.environ["CIFAR10_ROOT"]) if "CIFAR10_ROOT" in os.environ else None
    return ResNet18("torch", "cpu", data, None, (1, 5)).make(backend)


def evaluate_on_rank(backend: BaseDistBackend, arguments: Arguments) -> tuple[float, Any]:
    """Return the seconds of one evaluation of ResNet-18 by several ranks, and the result."""
    task = task_of(backend)
    backend.all_gather_object(None)  # all begin together
    begin = time.perf_counter()
    found = evaluate(task.predict, task.samples, task.metrics, backend, 32, **arguments)
    return time.perf_counter() - begin, found.metrics


def slowed(rounds: int, images: int) -> Iterator[str]:
    """Yield how long processes take that compute, of which one is slow, as Markdown."""
    yield f"| {RANKS} processes, {images} images | static, s | leases, s | static to leases |"
    yield "|---|---:|---:|---:|"
    with World("torch_cpu", RANKS, threads=1, timeout=600.0) as world:

        def run(schedule: Arguments) -> tuple[float, Any]:
            arguments = [{"limit": images, **schedule}] * RANKS
            found = world.run(evaluate_on_rank, *arguments)
            return max(seconds for seconds, _ in found), found[0][1]

        slow = world.run(lambda backend: os.getpid())[-1]  # rank 0 lends the leases
        run({"limit": 96, "schedule": "leases"})
        for name, slower in {"equal ranks": 1, f"one rank {SLOWER} times slower": SLOWER}.items():
            with stopped_in_turns(slow, slower):
                yield f"| {name} | {compared(rounds, run)} |"


def overhead(rounds: int, images: int) -> Iterator[str]:
    """Yield the CPU time of one rank that evaluates ResNet-18, as Markdown."""
    task = task_of(get_dist_backend("non_dist"))
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
