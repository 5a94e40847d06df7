"""The state of a training: everything that hooks may look at, and that a checkpoint holds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from disteval.arguments import check_choice, check_path
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.checkpoint import (
    load_weights,
    name_by_class,
    name_template,
    read_checkpoint,
    resume_model,
    state_of,
    weights_of,
    write_checkpoint,
)
from disteval.estimator.course import Course, place_in
from disteval.estimator.distributed import fitting_backend
from disteval.estimator.files import write_on_rank_0
from disteval.estimator.folder import FolderLocks, read_together
from disteval.estimator.records import LogBuffer, Record, named_metrics
from disteval.metrics import BaseMetric

_ONLY = "optimizer"  # the name of a runner's single optimizer


class Context:
    """The runner as its hooks see it: attributes to read, and methods that a hook may call.

    Args:
        model: It has ``train_step(data, optimizer)`` and ``val_step(data, optimizer)``, which
            return a dict with ``loss`` (a tensor; for training), ``log_vars`` (numbers by name) and
            ``num_samples``; and for accuracy ``scores`` (B, classes) and ``labels`` (B,). On
            several ranks wrap it with `disteval.estimator.distributed.distribute`.
        batch_processor: Called as ``batch_processor(model, data, train_mode=...)`` instead of the
            model's steps; returns the same dict. On several ranks wrap the model that it calls
            with DistributedDataParallel.
        optimizer: A torch optimizer, or several by name.
        work_dir: The folder in which hooks write.
        logger: The logger of log lines.
        meta: Entries for checkpoints, in plain containers; ``seed`` seeds the random number
            generators when training is resumed with another world size.
        max_iters: The iteration at which training ends, for an `IterBasedRunner`.
        max_epochs: The epoch at which training ends.
        metrics: Metrics by name, for every validation and evaluation of this runner; each gets
            ``add(scores, labels)``. None stands for accuracy where scores are those of classes.
        autocast: ``bfloat16`` to run training steps in torch's automatic mixed precision.
            Validation is in full precision, so that its figures are those of the saved weights.
        stop_on_nan: Whether a loss that is NaN or infinite ends training with a TrainingError.
        backend: Carries messages between ranks, an instance or a name. None stands for the backend
            that fits torch.distributed's process group, or else for the default.

    Raises:
        UsageError: Both ``max_iters`` and ``max_epochs`` were given, or an argument can't work.

    Attributes:
        epoch: Complete passes over the training data.
        iter: Complete training iterations.
        inner_iter: The current iteration's place in its pass over a loader, from 0.
        mode: ``train`` or ``val``.
        hooks: The hooks in the order in which they are called.
        log_buffer: The variables that the steps of the current phase reported.
        data_loader, data_batch, outputs: Those of the current iteration.
        records: One for each phase; see `disteval.estimator.records`.
        stopped: Why a hook ended training early; None while it did not.
        on_record: Called with each record.
        on_progress: Called after each batch with the number of batches done and their total.
        course: The place in the workflow and in the loaders.
        training: The training that checkpoints belong to, which `resume` takes from the file.
        locks: The folders that rank 0 keeps other trainings out of during a run.
    """

    by_epoch: ClassVar[bool]
    """Whether the runner counts epochs, or else iterations; hooks made from dicts do the same."""

    def __init__(
        self,
        model: Any,
        batch_processor: Callable[..., Any] | None = None,
        optimizer: Any = None,
        work_dir: str | Path | None = None,
        logger: logging.Logger | None = None,
        meta: Mapping[str, Any] | None = None,
        max_iters: int | None = None,
        max_epochs: int | None = None,
        *,
        metrics: Mapping[str, BaseMetric] | None = None,
        autocast: str | None = None,
        stop_on_nan: bool = True,
        backend: str | BaseDistBackend | None = None,
    ) -> None:
        if max_iters is not None and max_epochs is not None:
            raise UsageError("give one of max_iters and max_epochs, not both")
        if max_iters is not None and self.by_epoch:
            raise UsageError(
                f"max_iters={max_iters}: an EpochBasedRunner ends with an epoch; give max_epochs, "
                f"or use IterBasedRunner"
            )
        if autocast is not None:
            check_choice("autocast", autocast, ("bfloat16",))
        self.model = model
        self.metrics = named_metrics(metrics)
        self.autocast = autocast
        self.stop_on_nan = stop_on_nan
        self.stopped: str | None = None
        self.batch_processor = batch_processor
        self.optimizer = optimizer
        self.work_dir = None if work_dir is None else check_path("work_dir", work_dir)
        self.logger = logger or logging.getLogger("disteval.estimator")
        self.meta = dict(meta or {})
        self.max_epochs = max_epochs
        self.max_iters = max_iters
        self.hooks: list[Any] = []
        self.log_buffer = LogBuffer()
        self.mode = "train"
        self.epoch = self.iter = self.inner_iter = 0
        self.data_loader: Any = None
        self.data_batch: Any = None
        self.outputs: Any = None
        self.records: list[Record] = []
        self.on_record: Callable[[Record], None] | None = None
        self.on_progress: Callable[[int, int], None] | None = None
        self.course = Course(self.by_epoch)
        self.training = secrets.token_hex(8)
        self.locks = FolderLocks()
        self._backend = backend
        self._generators: rng.RngState | None = None  # with which the next run begins

    @property
    def backend(self) -> BaseDistBackend:
        """The backend that carries messages between ranks."""
        return fitting_backend(self._backend)

    @backend.setter
    def backend(self, backend: str | BaseDistBackend | None) -> None:
        self._backend = backend

    @property
    def rank(self) -> int:
        """This process's rank; 0 where there is one process."""
        return self.backend.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.backend.world_size

    def call_hook(self, stage: str, *args: Any) -> None:
        """Call one stage of every hook, in the order of their priorities."""
        for hook in list(self.hooks):
            getattr(hook, stage)(self, *args)

    def stop(self, reason: str) -> None:
        """End training with the current phase; the turn of the workflow is finished."""
        self.stopped = reason
        if self.rank == 0:
            self.logger.warning("training ends at epoch %d: %s", self.trained()[0], reason)

    def publish(self, record: Record) -> None:
        """Keep a record, and pass it to `on_record` and to the hooks."""
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)
        self.call_hook("after_record", record)

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers by name; a single one is called ``optimizer``."""
        if isinstance(self.optimizer, Mapping):
            return dict(self.optimizer)
        return {} if self.optimizer is None else {_ONLY: self.optimizer}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        return [group for each in self.optimizers().values() for group in each.param_groups]

    def current_lr(self) -> list[float] | dict[str, list[float]]:
        """Return each parameter group's learning rate, by optimizer where these are named."""
        if self.optimizer is None:
            raise UsageError("there is no learning rate: give the runner an optimizer")
        named = self.optimizers().items()
        rates = {name: [float(g["lr"]) for g in each.param_groups] for name, each in named}
        return rates if isinstance(self.optimizer, Mapping) else rates[_ONLY]

    def first_lr(self) -> float | None:
        """Return the first parameter group's learning rate; None without an optimizer."""
        return next((float(group["lr"]) for group in self.parameter_groups()), None)

    def trained(self) -> tuple[int, int]:
        """Return the complete epochs and iterations, also at the stages of the last ones."""
        return self.course.trained(self.epoch, self.iter)

    def save_checkpoint(
        self,
        out_dir: str | Path,
        filename_tmpl: str | None = None,
        save_optimizer: bool = True,
    ) -> Path:
        """Write the state to a file; every rank must call this, and rank 0 writes.

        The file appears whole or not at all, and the link ``latest.pt`` points to it.

        Args:
            out_dir: The folder, which is made if it is missing.
            filename_tmpl: ``{}`` stands for the number of epochs or iterations that are complete;
                None for ``epoch_{}.pt`` or ``iter_{}.pt``.
            save_optimizer: Whether to include the optimizers' state.

        Raises:
            UsageError: The template can't be used.
            RankError: On every rank, when rank 0 could not write.
        """
        done = self.trained()[0 if self.by_epoch else 1]
        name = name_template(filename_tmpl, self.by_epoch).format(done)
        path = check_path("out_dir", out_dir) / name
        state = self.state_dict(save_optimizer)
        write_on_rank_0(self.backend, path, lambda: write_checkpoint(path, state))
        return path

    def load_checkpoint(self, filename: str | Path, strict: bool = False) -> dict[str, Any]:
        """Take the weights from a file, and nothing else; return its content.

        Args:
            filename: A checkpoint, a file with a state dict, or a ``.safetensors`` file.
            strict: Whether missing or unexpected names are an error instead of a warning.

        Raises:
            WeightsError: The file is missing or damaged, or does not fit the model.
        """
        found = read_checkpoint(filename)
        wrong = load_weights(self.model, found["state_dict"], str(filename), strict=strict)
        if wrong:
            self.logger.warning("%s: missing or unexpected: %s", filename, ", ".join(wrong))
        return found

    def state_dict(self, save_optimizer: bool = True) -> dict[str, Any]:
        """Return the state in plain containers and tensors; every rank must call this.

        It holds ``state_dict`` (the weights, without ``module.``), ``optimizer``, ``epoch``,
        ``iter``, ``hooks``, ``rng`` (of every rank), ``position`` and ``meta``.
        All but ``rng`` is of this rank, and a checkpoint keeps the state of rank 0.
        """
        epoch, iteration = self.trained()
        position = dict(self.course.place())
        own = {"now": self._generators or rng.capture(), "passes": position.pop("starts")}
        state = {
            "meta": {**self.meta, "training": self.training, "epoch": epoch, "iter": iteration},
            "state_dict": weights_of(self.model),
            "epoch": epoch,
            "iter": iteration,
            "hooks": {name: hook.state_dict() for name, hook in name_by_class(self.hooks).items()},
            "rng": self.backend.all_gather_object(own),
            "position": position,
        }
        if save_optimizer and self.optimizer is not None:
            state["optimizer"] = {n: state_of(each) for n, each in self.optimizers().items()}
        return state

    def resume(
        self, checkpoint: str | Path | Mapping[str, Any], resume_optimizer: bool = True
    ) -> None:
        """Take the state of a checkpoint, so that `run` continues there; every rank must call this.

        With the same world size, training that was resumed gives the same results to the bit as
        training that was not interrupted, also in the middle of an epoch. With another world size
        the generators are seeded from ``meta['seed']`` (else the sampler's seed, else 0), the
        iteration and the rank, and an epoch that was interrupted is begun anew. The record of a
        phase that was resumed in its middle covers the iterations since then.

        Args:
            checkpoint: A file of `save_checkpoint`, the result of `state_dict`, or a folder, whose
                newest whole checkpoint is taken; damaged ones get another name, with a warning.
            resume_optimizer: Whether to take the optimizers' state.

        Raises:
            UsageError: The folder has no checkpoint, or those of several trainings.
            WeightsError: The checkpoint is missing, damaged or incomplete, or does not fit.
        """
        state, origin = checkpoint, "the state"
        if not isinstance(state, Mapping):
            state, origin = read_together(self.backend, state, self.logger.warning)
        resume_model(self.model, self.optimizers() if resume_optimizer else {}, state, origin)
        self.epoch, self.iter = state["epoch"], state["iter"]
        self.training = state.get("meta", {}).get("training", self.training)
        hooks = name_by_class(self.hooks)
        for name, kept in state.get("hooks", {}).items():
            if name in hooks:
                hooks[name].load_state_dict(kept)
            elif kept:
                self.logger.warning("the checkpoint has a state of %s, a hook not here", name)
        self.course.pending = place_in(state, self.world_size, self.rank)
        # Creating the loaders may draw from the generators before the next run begins.
        self._generators = rng.capture()
