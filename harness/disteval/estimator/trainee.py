"""What a worker trains: a runner, behind the few methods that the estimator needs of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import steps
from disteval.estimator.distributed import averages_gradients, distribute, inner
from disteval.estimator.hooks.checkpoint import CheckpointHook
from disteval.estimator.hooks.evaluation import EvalHook
from disteval.estimator.loaders import deal
from disteval.estimator.records import Record
from disteval.estimator.runner import BaseRunner
from disteval.estimator.validation import validate
from disteval.metrics.base import BaseMetric
from disteval.worlds import report_progress


class Trainee(Protocol):
    """A runner with its model distributed over the workers.

    Attributes:
        meta: Goes into every checkpoint; plain containers.
        on_record: To be called with each record, on every rank.
    """

    meta: dict[str, Any]
    on_record: Callable[[Record], None] | None

    @property
    def model(self) -> torch.nn.Module:
        """The model itself."""

    def run(
        self,
        loaders: Sequence[DataLoader],
        workflow: Sequence[tuple[str, int]],
        max_epochs: int | None,
    ) -> Any:
        """Train; see `BaseRunner.run`."""

    def evaluate(self, loader: Any, metrics: Mapping[str, BaseMetric] | None) -> Record:
        """Evaluate; see `disteval.estimator.validation.validate`."""

    def outputs(self, batch: Any) -> Any:
        """Compute an entry for each sample of a batch, in `evaluating`'s state."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from; every rank must call it."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""

    def folders(self) -> list[Path]:
        """Return where the runner's hooks leave checkpoints that `resume` takes."""


class OwnTrainee:
    """An `EpochBasedRunner` or an `IterBasedRunner`.

    Args:
        runner: What the user's creator returned. On several workers its model is
            wrapped here, so that gradients are averaged, unless it or a part of it is already.
        backend: The workers'.
        seed: See `disteval.estimator.Estimator`.

    Raises:
        UsageError: Its model is none.
    """

    def __init__(self, runner: BaseRunner, backend: BaseDistBackend, seed: int) -> None:
        if not isinstance(runner.model, torch.nn.Module):
            raise UsageError(f"the runner's model is a {type(runner.model).__name__}, no Module")
        if backend.world_size > 1 and not averages_gradients(runner.model):
            if hasattr(runner.model, "train_step"):
                runner.model = distribute(runner.model)
            elif runner.batch_processor is not None:
                runner.model = DistributedDataParallel(runner.model)
        runner.backend = backend
        runner.on_progress = report_progress
        runner.meta.setdefault("seed", seed)
        for hook in runner.hooks:
            if isinstance(hook, EvalHook) and isinstance(hook.dataloader, DataLoader):
                hook.dataloader = deal(hook.dataloader, backend, False, seed)
        self._runner = runner
        self.meta = runner.meta
        self.state_dict = runner.state_dict
        self.resume = runner.resume
        self.run = runner.run

    @property
    def on_record(self) -> Callable[[Record], None] | None:
        """See `Trainee`."""
        return self._runner.on_record

    @on_record.setter
    def on_record(self, call: Callable[[Record], None] | None) -> None:
        self._runner.on_record = call

    @property
    def model(self) -> torch.nn.Module:
        """See `Trainee`."""
        model: torch.nn.Module = inner(self._runner.model)
        return model

    def evaluate(self, loader: Any, metrics: Mapping[str, BaseMetric] | None) -> Record:
        """See `Trainee`."""
        return validate(self._runner, loader, metrics)

    def outputs(self, batch: Any) -> Any:
        """Return what ``predict_step`` does, else the scores of ``val_step``.

        Raises:
            UsageError: The model has neither.
        """
        runner = self._runner
        if hasattr(self.model, "predict_step"):
            return self.model.predict_step(batch)
        stepped = steps.val_step(runner.model, runner.batch_processor, batch, runner.optimizer)
        if "scores" not in stepped:
            raise UsageError(
                f"{type(self.model).__name__} has no predict_step(data), and its val_step "
                f"returned no scores; add one of them"
            )
        return stepped["scores"]

    def folders(self) -> list[Path]:
        """See `Trainee`."""
        hooks = [hook for hook in self._runner.hooks if isinstance(hook, CheckpointHook)]
        found = [hook.out_dir or self._runner.work_dir for hook in hooks]
        return [folder for folder in dict.fromkeys(found) if folder is not None]


def trainee_of(runner: Any, backend: BaseDistBackend, seed: int) -> Trainee:
    """Take what a user's creator returned.

    Raises:
        UsageError: It is no runner that is known.
    """
    if isinstance(runner, BaseRunner):
        return OwnTrainee(runner, backend, seed)
    raise UsageError(
        f"runner_creator returned a {type(runner).__name__}; it must return an EpochBasedRunner "
        f"or an IterBasedRunner"
    )
