"""How long does an evaluation take for a picture, for a sample and for a batch?"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from typing import Any

import numpy as np
from disteval import ByLength, evaluate
from disteval.metrics import Mean

from . import _ranks, _worlds

PICTURES = 512
ROUNDS = 3
SAMPLES = 2_000
SHORTEST, LONGEST = 16, 160
BATCHINGS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 32, "even_calls": False, "fixed_shape": False},
    "sorted by length": {"batch_size": 32, "by_length": ByLength()},
    "token budget": {"batch_size": SAMPLES, "by_length": ByLength(None, 32 * LONGEST, sort=False)},
}
"""How samples of different lengths are put into batches, as arguments of `evaluate`."""

MODULES = {
    "torch": ("torch",),
    "jax": ("jax", "flax"),
    "tensorflow": ("tensorflow", "keras"),
    "mlx": ("mlx",),
}
"""The modules that each framework's model imports."""

BACKENDS = [
    "non_dist", "torch_cpu", "torch_cuda", "mpi4py", "tf_horovod", "tf_collective", "jax", "mlx",
]  # fmt: skip


class EvaluationCost(_worlds.InWorld):
    """The time that `disteval.evaluate` takes for a picture, with ResNet-18 on 512 of them.

    The pictures are CIFAR-10's where ``CIFAR10_ROOT`` names its folder, and the embedded ones
    elsewhere.
    """

    params = (list(MODULES), BACKENDS, ["cpu", "cuda"], [1, 2])
    param_names = ("framework", "backend", "device", "world_size")

    def setup(self, framework: str, backend: str, device: str, world_size: int) -> None:
        for module in MODULES[framework]:
            _worlds.require_module(module)
        _worlds.require_backend(backend, world_size)
        if device == "cuda" and not _has_gpu(framework):
            raise NotImplementedError(f"{framework} finds no CUDA device")
        self.start(backend, world_size)

    def track_picture(self, framework: str, _backend: str, device: str, _world_size: int) -> float:
        """Return the median round of the slowest rank, divided by the pictures of all ranks."""
        work = (framework, device, os.environ.get("CIFAR10_ROOT"), PICTURES, ROUNDS)
        found = self.run(_ranks.evaluation_seconds, work)
        return max(statistics.median(rank) for rank in found) * 1e6

    track_picture.unit = "us"  # type: ignore[attr-defined]


class RaggedCost:
    """The time that `evaluate` takes for a sample with a length of its own, in NumPy on one rank.

    The model sums the tokens that are no padding, so the time is that of forming batches, of
    padding, and of the metric.
    """

    params = (list(BATCHINGS),)
    param_names = ("batches",)

    def track_sample(self, batches: str) -> float:
        """Return the median round."""
        draw = np.random.default_rng(0)
        lengths = draw.integers(SHORTEST, LONGEST + 1, SAMPLES)
        samples = [{"tokens": draw.integers(1, 9, length)} for length in lengths]
        expected = statistics.fmean(int(each["tokens"].sum()) for each in samples)
        seconds = []
        for _ in range(ROUNDS + 1):
            metrics = {"mean": Mean()}
            begin = time.perf_counter()
            result = evaluate(
                lambda tokens: tokens.sum(axis=1), samples, metrics, "non_dist",
                collate=_collate, update=lambda sums, _: (sums,), **BATCHINGS[batches],
            )  # fmt: skip
            seconds.append(time.perf_counter() - begin)
            if result.metrics["mean"]["mean"] != expected:
                raise AssertionError(f"the mean is {expected}, not {result.metrics['mean']}")
        return statistics.median(seconds[1:]) / SAMPLES * 1e6

    track_sample.unit = "us"  # type: ignore[attr-defined]


def _collate(samples: list[dict[str, Any]]) -> tuple[Any, None]:
    rows = [sample["tokens"] for sample in samples]
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded, None


def _has_gpu(framework: str) -> bool:
    module = importlib.import_module(framework)
    if framework == "torch":
        return bool(module.cuda.is_available())
    if framework == "tensorflow":
        return bool(module.config.list_physical_devices("GPU"))
    if framework == "mlx":
        core = importlib.import_module("mlx.core")
        return bool(core.is_available(core.gpu))
    try:
        return bool(module.devices("cuda"))
    except RuntimeError:  # it has no such backend
        return False
