"""Estimate how long a metric takes on many ranks, by a model that is fitted to a few ranks.

python -m suites.benchmarks.scaling [--backend mpi4py] [--rounds 9] [--write docs/scaling.md]

All-gathers of m bytes from each of W = 2 and 3 ranks are measured, and the time of opening W small
frames. The model of an all-gather of objects is that of recursive doubling (Thakur, Rabenseifner
and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005)::

    t(W, m) = alpha * ceil(log2 W) + beta * (W - 1) * m + gamma * W

``alpha`` is the latency, ``beta`` the time of a byte, and ``gamma`` that of opening one frame.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from disteval import frames
from disteval.contract import BaseDistBackend
from disteval.report.files import write_file
from disteval.worlds import World

from suites.benchmarks.counting import time_it
from suites.benchmarks.leases_simulated import HEADING
from suites.benchmarks.objects import without_log

WORLD_SIZES = (2, 3)
BYTES = (64, 1 << 14, 1 << 18, 1 << 22, 1 << 24)
FRAMES = 4096

RANKS = (8, 64, 512, 4096, 16_384)
SAMPLES = (10**4, 10**6, 10**9)
COLUMN_BYTES = 8
"""The bytes of a gathered sample, which is one int64."""

Point = tuple[int, int, float]
"""A measurement: world size, bytes of each rank, seconds."""


class Model(NamedTuple):
    """The parameters of the model: the seconds of a step, of a byte, and of opening a frame."""

    alpha: float
    beta: float
    gamma: float

    def all_gather(self, world_size: int, size: float) -> float:
        """Return the seconds of gathering ``size`` bytes from each rank."""
        steps = math.ceil(math.log2(world_size))
        moved = (world_size - 1) * size
        return self.alpha * steps + self.beta * moved + self.gamma * world_size


def main() -> None:
    """Measure, fit the model, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="mpi4py")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    points = measure(options.backend, options.rounds)
    model = fit(points, gamma_of())
    lines = page(options.backend, load, points, model)
    if options.write is None:
        print("\n".join(lines))
        return
    others = options.write.read_text().partition(HEADING) if options.write.exists() else [""]
    write_file("--write", options.write, "\n".join([*lines, "", *others[1:]]))
    plot(model, options.write.with_suffix(".svg"))


def measure(backend: str, rounds: int) -> list[Point]:
    """Return the slowest rank's median all-gather for each world size and length."""
    points = []
    for world_size in WORLD_SIZES:
        with World(backend, world_size) as world:
            ranks = world.run(_gathers, *[rounds] * world_size, timeout=300)
        for size, *times in zip(BYTES, *ranks, strict=True):
            slowest = [max(by_rank) for by_rank in zip(*times, strict=True)]
            points.append((world_size, size, statistics.median(slowest)))
    return points


def _gathers(backend: BaseDistBackend, rounds: int) -> list[list[float]]:
    ours = without_log(backend)
    found = []
    for size in BYTES:
        mine = np.zeros(size, dtype=np.uint8)
        calls = max(1, min(300, (1 << 22) // size))
        found.append(time_it(ours, lambda mine=mine: ours.all_gather_object(mine), rounds, calls))
    return found


def gamma_of() -> float:
    """Return the seconds of opening a small frame, the median of nine times `FRAMES`."""
    call = frames.Call(1)
    block = frames.split((None, None, [(1000, [500], None, None)]), call).block
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(FRAMES):
            frames.decode(block, 0, call)
        times.append((time.perf_counter() - begin) / FRAMES)
    return statistics.median(times)


def fit(points: list[Point], gamma: float) -> Model:
    """Fit alpha and beta by least squares of the relative errors."""
    rows = np.array([[math.ceil(math.log2(w)), (w - 1) * size] for w, size, _ in points], float)
    seconds = np.array([t - gamma * w for w, _, t in points])
    weights = 1 / np.array([t for *_, t in points])
    scale = np.array([1.0, 1e-9])  # so that both columns are of like size
    (alpha, beta), *_ = np.linalg.lstsq(rows * scale * weights[:, None], seconds * weights)
    return Model(float(alpha), float(beta * 1e-9), gamma)


def page(backend: str, load: float, points: list[Point], model: Model) -> Iterator[str]:
    """Yield the parts of the page."""
    yield _INTRODUCTION
    yield f"## Measured: {backend}, {os.cpu_count()} cores, load {load:.2f} before\n"
    yield "| ranks | bytes of each rank | measured, ms | model, ms |\n|---:|---:|---:|---:|"
    for world_size, size, seconds in points:
        modelled = model.all_gather(world_size, size)
        yield f"| {world_size} | {size} | {seconds * 1e3:.3f} | {modelled * 1e3:.3f} |"
    yield (
        f"\nFitted: alpha {model.alpha * 1e6:.1f} µs, beta {model.beta * 1e9:.3f} ns per byte "
        f"({1e-9 / model.beta:.1f} GB/s); measured: gamma {model.gamma * 1e6:.2f} µs per frame.\n"
    )
    yield _EXTRAPOLATED
    heads = "".join(f" gathered, 10^{round(math.log10(samples))} samples |" for samples in SAMPLES)
    yield f"| ranks | sums, {frames.BLOCK_BYTES} bytes of each rank |{heads}"
    yield "|---:|---:|" + "---:|" * len(SAMPLES)
    for world_size in RANKS:
        sizes = [frames.BLOCK_BYTES, *(_column(n, world_size) for n in SAMPLES)]
        cells = [1e3 * model.all_gather(world_size, size) for size in sizes]
        yield f"| {world_size} |" + "".join(f" {_short(cell)} |" for cell in cells)
    yield _END


_INTRODUCTION = """\
# Scaling

This page shows how long `compute` takes on many ranks, for metrics that send sums and for metrics
that send samples. `python -m suites.benchmarks.scaling --write docs/scaling.md` writes it; the
docstring of that module explains the model and names its source.
"""

_EXTRAPOLATED = """\
## Extrapolated: nothing below was measured

The ranks above share the cores and the memory of one machine (three ranks on two cores wait for
each other), and on a network alpha and beta have other values. Milliseconds of one `compute`:
"""

_END = """
Gathered samples are 8 bytes each, in one column, and every rank receives all of them. The time
for sums does not depend on the number of samples; with thousands of ranks most of it is spent on
opening the frames of all other ranks. A test (`suites/evaluation/test_scale.py`) shows that an
evaluation on 512 ranks takes two collectives of one block and gives the same result as one rank.

![Seconds of one compute against ranks](scaling.svg)"""


def _column(samples: int, world_size: int) -> float:
    """Return the bytes that a rank sends of its share, which are at least one block."""
    return max(frames.BLOCK_BYTES, COLUMN_BYTES * samples / world_size)


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def plot(model: Model, path: Path) -> None:
    """Draw extrapolated seconds against ranks, with two logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="ranks", ylabel="seconds of one compute (extrapolated)")
    ranks = np.unique(np.logspace(3, 14, 60, base=2).astype(int))
    for samples in SAMPLES:
        seconds = [model.all_gather(w, _column(samples, w)) for w in ranks.tolist()]
        axes.loglog(ranks, seconds, "--", label=f"gathered, {samples:,} samples")
    sums = [model.all_gather(w, frames.BLOCK_BYTES) for w in ranks.tolist()]
    axes.loglog(ranks, sums, label="sums, any number of samples")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
