"""Measure the evaluation loop of each library's users and that of `disteval` in one run.

python -m suites.benchmarks.peers [--samples 2000] [--rounds 5] [--write docs/performance.md]

Every loop evaluates the same pictures with the same weights and the same number of threads. The
loops take turns, round after round, so that a machine that slows down slows all of them; the table
gives medians, their ratio to the first loop, and their share of what the machine's arithmetic would
allow, which a matrix product measures before and after. Each loop returns its number of correct
predictions, and all must agree. Libraries that are not installed are named and left out.
``--write`` writes the table into the page, whose other sections stay as they are.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from disteval.data import load_cifar10, load_embedded
from disteval.world import World

from suites.benchmarks.loops import BATCH_SIZE, Contestant, contestants, evaluate_on_rank

OPERATIONS = 43.3e6
"""Additions and multiplications of ResNet-18 for a picture of 32x32 that do not meet padding."""

LIBRARIES = (
    "torch", "tensorflow-cpu", "jax", "flax", "mpi4py", "horovod", "numpy", "torchmetrics",
    "accelerate",
)  # fmt: skip


def main() -> None:
    """Measure, and print the tables or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    lines = [_machine(), "", *evaluation(options.samples, options.rounds)]
    if options.write is None:
        print("\n".join(lines))
        return
    page = "\n".join([*_INTRODUCTION, *lines, "", _kept(options.write)])
    options.write.write_text(page)


_BY_HAND = "## Texts, collectives and counting"


def _kept(page: Path) -> str:
    """Return the sections of the page that are kept by hand."""
    text = page.read_text() if page.exists() else ""
    return text[text.index(_BY_HAND) :] if _BY_HAND in text else ""


_INTRODUCTION = (
    "# Performance",
    "",
    "`nox -s peers` writes the first table. The libraries of one table take turns in one run, so",
    "the ratios mean more than the figures, which depend on the machine. Results were verified in",
    "the same run.",
    "",
)


_FORWARD_PASS = """
For a picture of 32x32 the net has 37.0 million multiply-adds, of which 21.7 million meet the
picture and the others padding. The limit counts the former alone, so that a loop that multiplies
all of them can reach 59% of it at most. Cores times clock times width is no limit here: with the
2.0 GHz that /proc/cpuinfo says and two units of AVX2 a core, that is 128 GFLOP/s, and the
optimised net did 152 in November 2026.

`disteval, torch` computes the convolutions of at most 2x2 positions as matrix products, because a
3x3 kernel mostly meets padding there; `torch, optimised` is its forward pass alone. What is left is
bound by arithmetic: on one core, convolutions and products take 95% of the time, at 85 to 105
GFLOP/s, so ReLU, additions and pooling could save 5% at most if they were fused. `torch.compile`
with freezing takes 1.2 times the CPU time of `make_predict` for a picture, after 5 seconds of CPU
time for its first call, or 4 with a full cache; 10,000 pictures take as long as that."""


def _machine() -> str:
    versions = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    today = datetime.datetime.now(tz=datetime.timezone.utc)
    return (
        f"{today:%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before; "
        f"Python {platform.python_version()}, {', '.join(versions)}."
    )


def evaluation(samples: int, rounds: int) -> Iterator[str]:
    """Let the loops take turns, one of them on two gloo ranks, and yield the table as Markdown."""
    root = os.environ.get("CIFAR10_ROOT")
    dataset = load_cifar10(root) if root else load_embedded()
    dataset = replace(dataset, images=dataset.images[:samples], labels=dataset.labels[:samples])
    loops, missing = contestants(dataset)
    with World("torch_cpu", 2) as world:
        both = [dataset] * 2
        loops["disteval, torch, 2 gloo ranks"] = lambda: world.run(evaluate_on_rank, *both)[0]
        peak = product_speed()
        speeds = race(loops, len(dataset), rounds)
        peak = max(peak, product_speed())
    limit = peak / OPERATIONS
    yield (
        f"A product of float32 matrices reached {peak / 1e9:.0f} GFLOP/s in this run, with "
        f"{torch.get_num_threads()} threads. That is the limit: {limit:.0f} images/s.\n"
    )
    yield f"ResNet-18 on {len(dataset)} pictures of {dataset.name}, batches of {BATCH_SIZE}:"
    yield ""
    yield "| loop | images/s (median) | min | max | ratio | of the limit |"
    yield "|---|---:|---:|---:|---:|---:|"
    first = statistics.median(next(iter(speeds.values())))
    for name, values in speeds.items():
        middle = statistics.median(values)
        spread = f"{min(values):.0f} | {max(values):.0f}"
        shares = f"{middle / first:.2f} | {middle / limit:.0%}"
        yield f"| {name} | {middle:.0f} | {spread} | {shares} |"
    if missing:
        yield f"\nNot installed: {', '.join(missing)}."
    yield _FORWARD_PASS


def product_speed(size: int = 2048, rounds: int = 10) -> float:
    """Return the operations per second of the fastest of some products of float32 matrices."""
    left, right = torch.rand(2, size, size)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)


def race(loops: Mapping[str, Contestant], samples: int, rounds: int) -> dict[str, list[float]]:
    """Return the images per second of each loop in each round, after one round of warm-up."""
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    answers = {name: run() for name, run in loops.items()}
    if len(set(answers.values())) > 1:
        raise SystemExit(f"the contestants do not agree on the right samples: {answers}")
    for _ in range(rounds):
        for name, run in loops.items():
            begin = time.perf_counter()
            run()
            speeds[name].append(samples / (time.perf_counter() - begin))
    return speeds


if __name__ == "__main__":
    main()
