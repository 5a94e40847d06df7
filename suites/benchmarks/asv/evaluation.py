"""How many pictures does an evaluation evaluate in a second?"""

from __future__ import annotations

import importlib
import os
import statistics

from . import _ranks, _worlds

PICTURES = 512
ROUNDS = 3
MODULES = {"torch": ("torch",), "jax": ("jax", "flax"), "tensorflow": ("tensorflow", "keras")}
"""The modules that each framework's model imports."""


class EvaluationThroughput(_worlds.InWorld):
    """The speed of `disteval.evaluate` with ResNet-18 on 512 pictures in memory.

    The pictures are CIFAR-10's where ``CIFAR10_ROOT`` names its folder, and the embedded ones
    elsewhere.
    """

    params = (
        list(MODULES),
        ["non_dist", "torch_cpu", "torch_cuda", "mpi4py", "tf_horovod", "tf_collective", "jax"],
        ["cpu", "cuda"],
        [1, 2],
    )
    param_names = ("framework", "backend", "device", "world_size")

    def setup(self, framework: str, backend: str, device: str, world_size: int) -> None:
        for module in MODULES[framework]:
            _worlds.require_module(module)
        _worlds.require_backend(backend, world_size)
        if device == "cuda" and not _has_gpu(framework):
            raise NotImplementedError(f"{framework} finds no CUDA device")
        self.start(backend, world_size)

    def track_images(self, framework: str, _backend: str, device: str, _world_size: int) -> float:
        """Return the median round of the slowest rank."""
        work = (framework, device, os.environ.get("CIFAR10_ROOT"), PICTURES, ROUNDS)
        return min(statistics.median(rank) for rank in self.run(_ranks.evaluation_speeds, work))

    track_images.unit = "images/s"  # type: ignore[attr-defined]


def _has_gpu(framework: str) -> bool:
    module = importlib.import_module(framework)
    if framework == "torch":
        return bool(module.cuda.is_available())
    if framework == "tensorflow":
        return bool(module.config.list_physical_devices("GPU"))
    try:
        return bool(module.devices("cuda"))
    except RuntimeError:  # it has no such backend
        return False
