"""Measure the forward pass of `make_predict`, and what `evaluate` adds to it, on this CPU.

python -m suites.benchmarks.forward [--samples 2000 10000] [--rounds 5]

Three loops take turns, round after round: forward passes of the folded network with all of its
convolutions, forward passes of `make_predict`, and `evaluate` with `make_predict`. All must get
the same samples right. The ratios are medians over rounds, of time and of CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import replace
from functools import partial

from disteval.data import load_embedded
from disteval.models import default_weights
from disteval.models.resnet18_torch import make_predict

from suites.benchmarks.loops import Contestant, convolved, ours, passes

Figures = tuple[float, float]
"""The seconds and the CPU seconds of a loop."""


def main() -> None:
    """Let the loops take turns, and print the two ratios for each number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    every, predict = load_embedded(), make_predict(default_weights())
    for size in options.samples:
        data = replace(every, images=every.images[:size], labels=every.labels[:size])
        before, after, whole = measured(
            [
                partial(passes, data, convolved()),
                partial(passes, data, predict),
                ours(data, predict),
            ],
            options.rounds,
        )
        print(f"\n{len(data)} pictures, make_predict {_speed(len(data), after)} images/s")
        print(f"make_predict to convolutions alone: {_ratio(before, after)}")
        print(f"evaluate to make_predict alone:     {_ratio(after, whole)}")


def measured(loops: list[Contestant], rounds: int) -> list[list[Figures]]:
    """Return what each loop took in each round, after one round of warm-up."""
    answers = [run() for run in loops]
    if len(set(answers)) > 1:
        raise SystemExit(f"the loops do not agree on the right samples: {answers}")
    taken: list[list[Figures]] = [[] for _ in loops]
    for _ in range(rounds):
        for figures, run in zip(taken, loops, strict=True):
            begin, cpu = time.perf_counter(), time.process_time()
            run()
            figures.append((time.perf_counter() - begin, time.process_time() - cpu))
    return taken


def _speed(size: int, taken: list[Figures]) -> str:
    return f"{size / statistics.median(seconds for seconds, _ in taken):.0f}"


def _ratio(slow: list[Figures], fast: list[Figures]) -> str:
    pairs = list(zip(slow, fast, strict=True))
    time_, cpu = (statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1))
    return f"{time_:.3f} of the speed, {cpu:.3f} by CPU time"


if __name__ == "__main__":
    main()
