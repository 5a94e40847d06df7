"""ResNet-18 on CIFAR-10: the task of ``disteval eval`` where no other is named."""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disteval.contract import BaseDistBackend
from disteval.data.base import ArrayDataset
from disteval.data.cifar10 import load_cifar10
from disteval.data.embedded import load_embedded
from disteval.errors import UsageError
from disteval.evaluation import Task
from disteval.extras import needs
from disteval.metrics.accuracy import Accuracy
from disteval.models.weights import check_weights, default_weights, load_weights

FRAMEWORKS = {
    "torch": "disteval.models.resnet18_torch",
    "jax": "disteval.models.resnet18_jax",
    "tensorflow": "disteval.models.resnet18_tensorflow",
    "mlx": "disteval.models.resnet18_mlx",
}
"""The module of each framework's model, which defines ``make_predict``."""


@dataclass(frozen=True)
class ResNet18:
    """The settings of the task.

    Attributes:
        framework: A key of `FRAMEWORKS`.
        device: ``cpu`` or ``cuda``.
        data: A folder with CIFAR-10's test split; None stands for the embedded data set.
        weights: A weights file; None stands for the weights that ship.
        topk: Each k of the top-k accuracies.
        exact: Whether batch normalisations are computed instead of folded.
        dtype: The number format that the network computes in.
    """

    framework: str
    device: str
    data: Path | None
    weights: Path | None
    topk: tuple[int, ...]
    exact: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"

    def check(self) -> None:
        """Refuse data and weights that no rank could read, as far as that shows without torch.

        Raises:
            HarnessError: See `load_cifar10` and `load_weights`.
        """
        if self.data is not None:
            load_cifar10(self.data, "test")
        if self.weights is not None:
            check_weights(self.weights)

    def make(self, backend: BaseDistBackend) -> Task:
        """Return the task of one rank."""
        data = load_embedded("test") if self.data is None else load_cifar10(self.data, "test")
        weights = default_weights() if self.weights is None else load_weights(self.weights)
        with needs(f"the framework {self.framework!r}", self.framework):
            model = importlib.import_module(FRAMEWORKS[self.framework])
        device = self._local_device(backend.rank)
        return Task(
            samples=data,
            predict=model.make_predict(weights, device, exact=self.exact, dtype=self.dtype),
            metrics={"accuracy": Accuracy(topk=self.topk, counts=True)},
            name=self.name_with(data),
        )

    def name_with(self, data: ArrayDataset) -> str:
        """Return the task's name, which has digests of the data and the weights."""
        weights = "that ship" if self.weights is None else _digest(self.weights.read_bytes())
        return (
            f"ResNet-18 in {self.framework}, {self.dtype}{', exact' * self.exact}, with the "
            f"weights {weights} and the images {_digest(data.images)}"
        )

    def describe(self, task: Task) -> dict[str, Any]:
        """Return what a report says of the task."""
        return {
            "task": f"ResNet-18 on {task.samples.name}",
            "framework": self.framework,
            "device": self.device,
            "dtype": self.dtype,
            "exact": self.exact,
        }

    def _local_device(self, rank: int) -> str:
        """Return the rank's device; ranks on one host are distributed over its GPUs."""
        if self.device != "cuda":
            return self.device
        count = _count_gpus(self.framework)
        if count == 0:
            raise UsageError(
                f"--device cuda: {self.framework} finds no CUDA device here; use --device cpu"
            )
        return f"cuda:{rank % count}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _count_gpus(framework: str) -> int:
    if framework == "torch":
        import torch

        return int(torch.cuda.device_count())
    if framework == "jax":
        # Ranks share GPUs, most of whose memory each JAX takes at its start unless this is set.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        try:
            return len(jax.local_devices(backend="cuda"))
        except RuntimeError:  # JAX was installed without CUDA
            return 0
    if framework == "mlx":
        import mlx.core as mx

        return int(mx.device_count(mx.gpu)) if mx.is_available(mx.gpu) else 0
    import tensorflow

    return len(tensorflow.config.list_physical_devices("GPU"))
