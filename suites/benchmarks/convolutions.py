"""Measure in one run what JAX's forward pass gains on a CPU from `convolve_on_cpu`.

python -m suites.benchmarks.convolutions [--samples 2048] [--batch 256] [--rounds 7]

The same folded ResNet-18 is computed with XLA's own convolutions, which is the form before, and as
`disteval eval` computes it. They take turns, round after round; both must predict the same classes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from disteval.data import load_embedded
from disteval.models import default_weights
from disteval.models.folding import fold_norms
from disteval.models.preprocess import preprocess
from disteval.models.resnet18_jax import ResNet18, make_predict, variables

Predict = Callable[[Any], jax.Array]


def main() -> None:
    """Let both forms take turns, and print pictures a second of time and of CPU time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    images = load_embedded().images[: options.samples]
    forms = {"XLA's convolutions": plain(), "convolve_on_cpu": make_predict(default_weights())}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n")
    first = {name: measured(predict, images, options.batch) for name, predict in forms.items()}
    before, after = (found for found, *_ in first.values())
    if not np.array_equal(before, after):
        raise SystemExit(f"{(before != after).sum()} predicted classes differ between the forms")
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in forms}
    for _ in range(options.rounds):
        for name, predict in forms.items():
            _, seconds, cpu = measured(predict, images, options.batch)
            figures[name].append((len(images) / seconds, len(images) / cpu))
    print("| form | images/s (median) | images per CPU second | ratio | first round, CPU s |")
    print("|---|---:|---:|---:|---:|")
    base = statistics.median(rate for _, rate in figures["XLA's convolutions"])
    for name, found in figures.items():
        rate, per_cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(
            f"| {name} | {rate:.0f} | {per_cpu:.0f} | {per_cpu / base:.2f} | {first[name][2]:.1f} |"
        )


def plain() -> Predict:
    """Return the folded network with the convolutions of `jax.lax`, as a function of pictures."""
    weights = fold_norms(default_weights())
    model, held = ResNet18(folded=True), jax.device_put(variables(weights))
    forward = jax.jit(lambda held, x: model.apply(held, preprocess(x).transpose(0, 2, 3, 1)))
    return partial(forward, held)


def measured(predict: Predict, images: Any, batch: int) -> tuple[Any, float, float]:
    """Return the predicted classes of all pictures, the seconds and the CPU seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    scores = [
        np.asarray(predict(images[start : start + batch])) for start in range(0, len(images), batch)
    ]
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return np.concatenate(scores).argmax(axis=1), seconds, cpu


if __name__ == "__main__":
    main()
