"""mmengine's ``Runner`` as the estimator's trainee."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WeightsError
from disteval.estimator import rng
from disteval.estimator.checkpoint import load_weights, weights_of
from disteval.estimator.distributed import inner, share_buffers
from disteval.estimator.feed import sampler_with_epoch
from disteval.estimator.log_buffer import LogBuffer
from disteval.estimator.records import Record, gather_record
from disteval.estimator.validation import evaluating
from disteval.metrics.base import BaseMetric
from disteval.worlds import report_progress


class MMEngineTrainee:
    """An epoch-based ``mmengine.runner.Runner``, created with ``launcher='none'``.

    Its loaders are replaced by those of the estimator's creators; its hooks, schedulers, optimizer
    wrapper and evaluator do what they do. A workflow is ``[('train', n)]``,
    ``[('train', n), ('val', 1)]`` or ``[('val', 1)]``. A scheduler without ``end`` stops where the
    first `run` does.

    Args:
        engine: What the user's creator returned.
        backend: The workers'.
        seed: See `disteval.estimator.Estimator`.
    """

    def __init__(self, engine: Runner, backend: BaseDistBackend, seed: int) -> None:
        if backend.world_size > 1 and not is_model_wrapper(engine.model):
            engine.model = MMDistributedDataParallel(engine.model)
        engine.register_hook(_Recorder(self), priority="VERY_LOW")
        self.engine = engine
        self.backend = backend
        self.meta: dict[str, Any] = {"seed": seed}
        self.on_record: Callable[[Record], None] | None = None
        self.last: Record = {}
        self.pending: Mapping[str, Any] | None = None

    @property
    def model(self) -> torch.nn.Module:
        """The model itself."""
        model: torch.nn.Module = inner(self.engine.model)
        return model

    @property
    def optimizer(self) -> Any:
        """The optimizer wrapper; None until the first training has built it."""
        built = (OptimWrapper, OptimWrapperDict)
        return self.engine.optim_wrapper if isinstance(self.engine.optim_wrapper, built) else None

    def first_lr(self) -> float:
        """Return the first parameter group's learning rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def trained(self) -> tuple[int, int]:
        """Return the epochs and iterations that are complete."""
        if self.pending is not None:
            return self.pending["epoch"], self.pending["iter"]
        return self.engine.epoch, self.engine.iter

    def run(
        self,
        loaders: Sequence[DataLoader],
        workflow: Sequence[tuple[str, int]],
        max_epochs: int | None,
    ) -> None:
        """Train until ``max_epochs`` in all, or what the runner was created with."""
        modes = [mode for mode, _ in workflow]
        known = modes in (["train"], ["train", "val"], ["val"])
        if not known or any(mode == "val" and count != 1 for mode, count in workflow):
            raise UsageError(
                f"mmengine's Runner can't run the workflow {list(workflow)}; give [('train', n)], "
                f"[('train', n), ('val', 1)] or [('val', 1)]"
            )
        if modes == ["val"]:
            self._validate(loaders[0])
            return
        self._set_training(loaders[0], max_epochs, every=workflow[0][1])
        kept = self.engine._val_loop
        self.engine._val_loop = self._val_loop(loaders[1]) if modes[1:] else None
        try:
            self.engine.train()
        finally:
            self.engine._val_loop = self.engine._val_loop or kept

    def evaluate(self, loader: Any, metrics: Mapping[str, BaseMetric] | None) -> Record:
        """Evaluate with the runner's own evaluator."""
        if metrics is not None:
            raise UsageError(
                "mmengine's Runner evaluates with its val_evaluator; leave metrics out, or give it "
                "others"
            )
        told, self.on_record = self.on_record, None
        try:
            self._validate(loader)
        finally:
            self.on_record = told
        return self.last

    def outputs(self, batch: Any) -> Any:
        """Return what ``predict_step`` does, else ``val_step``."""
        step = getattr(self.model, "predict_step", self.model.val_step)
        return step(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from; every rank must call it."""
        if self.pending is not None:
            return dict(self.pending)
        epoch, iteration = self.trained()
        state = {
            "meta": {**copy.deepcopy(self.meta), "epoch": epoch, "iter": iteration},
            "state_dict": weights_of(self.model),
            "epoch": epoch,
            "iter": iteration,
            "rng": self.backend.all_gather_object(rng.capture()),
        }
        if self.optimizer is not None:
            state["sampler_seed"] = getattr(self._sampler(), "seed", None)
            state["optimizer"] = copy.deepcopy(self.optimizer.state_dict())
            state["schedulers"] = [copy.deepcopy(each.state_dict()) for each in self._schedulers()]
        return state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take weights now, and the rest when the next training has built what takes it."""
        if "schedulers" not in state and state.get("epoch") != 0:
            raise WeightsError("the state is not that of an mmengine Runner; its keys are others")
        load_weights(self.model, state["state_dict"], "the state", strict=True)
        self.pending = state

    def take_pending(self) -> None:
        """Take what was resumed: the runner has built its optimizer, and set its first weights."""
        state, self.pending = self.pending, None
        if state is None:
            return
        load_weights(self.model, state["state_dict"], "the state", strict=True)
        loop = self.engine.train_loop
        loop._epoch, loop._iter = state["epoch"], state["iter"]
        if state.get("sampler_seed") is not None and hasattr(self._sampler(), "seed"):
            self._sampler().seed = state["sampler_seed"]
        if "optimizer" in state:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            for each, kept in zip(self._schedulers(), state["schedulers"], strict=True):
                each.load_state_dict(copy.deepcopy(kept))
        self.optimizer.initialize_count_status(self.engine.model, loop.iter, loop.max_iters)
        if len(state["rng"]) == self.backend.world_size:
            rng.restore(state["rng"][self.backend.rank])
        else:
            rng.derive(self.meta["seed"], state["iter"], self.backend.rank)

    def folders(self) -> list[Path]:
        """Return nothing: mmengine's checkpoints hold objects, which are not read here."""
        return []

    def _sampler(self) -> Any:
        return sampler_with_epoch(self.engine.train_loop.dataloader)

    def _schedulers(self) -> list[Any]:
        found = self.engine.param_schedulers or []
        if isinstance(found, dict):
            return [each for schedulers in found.values() for each in schedulers]
        return list(found)

    def _set_training(self, loader: DataLoader, max_epochs: int | None, every: int) -> None:
        engine = self.engine
        if engine._train_loop is None:
            raise UsageError(
                "the mmengine Runner can't train: create it with train_dataloader (which the "
                "estimator's loaders replace), train_cfg and optim_wrapper"
            )
        engine._train_dataloader = loader
        loop = engine.train_loop
        if not hasattr(loop, "max_epochs") or not hasattr(loop, "_epoch"):
            raise UsageError(
                f"the mmengine Runner's train_cfg makes a {type(loop).__name__}; an estimator "
                f"trains by_epoch=True"
            )
        loop.dataloader = loader
        loop.val_interval = every
        loop.dynamic_milestones, loop.dynamic_intervals = [0], [every]
        if max_epochs is not None:
            loop._max_epochs = max_epochs
        loop._max_iters = loop._max_epochs * len(loader)

    def _val_loop(self, loader: Any) -> BaseLoop:
        engine = self.engine
        if engine._val_loop is None:
            raise UsageError(
                "the mmengine Runner can't validate: create it with val_dataloader (which the "
                "estimator's loaders replace), val_cfg and val_evaluator"
            )
        engine._val_dataloader = loader
        loop = engine.val_loop
        loop.dataloader = loader
        return loop

    def _validate(self, loader: Any) -> None:
        loop = self._val_loop(loader)
        with evaluating(self.model, self.backend):
            loop.run()


class _Recorder(Hook):  # type: ignore[misc]
    """Makes a record of each phase of an mmengine Runner, and tells its progress."""

    def __init__(self, trainee: MMEngineTrainee) -> None:
        self._trainee = trainee
        self._begin()

    def before_train(self, runner: Runner) -> None:
        self._trainee.take_pending()

    def before_train_epoch(self, runner: Runner) -> None:
        self._begin()

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._lr = self._trainee.first_lr()  # schedulers change it before the epoch has ended

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        size = _size_of(data_batch)
        self._samples += size
        self._buffer.update(outputs or {}, size)
        report_progress(batch_idx + 1, len(runner.train_dataloader))

    def after_train_epoch(self, runner: Runner) -> None:
        # mmengine counts an epoch after its hooks.
        epoch = runner.epoch + 1
        self._tell(self._record("train") | {"epoch": epoch, "lr": self._lr})

    def before_val_epoch(self, runner: Runner) -> None:
        share_buffers(self._trainee.model, self._trainee.backend)
        self._begin()

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._samples += _size_of(data_batch)
        report_progress(batch_idx + 1, len(runner.val_dataloader))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        found = {name: _plain(value) for name, value in (metrics or {}).items()}
        self._tell(self._record("val") | found)

    def _begin(self) -> None:
        self._buffer = LogBuffer()
        self._samples = 0
        self._started = time.perf_counter()

    def _record(self, mode: str) -> Record:
        seconds = time.perf_counter() - self._started
        trainee = cast(Any, self._trainee)
        return gather_record(trainee, mode, self._buffer, self._samples, seconds)[0]

    def _tell(self, record: Record) -> None:
        self._trainee.last = record
        if self._trainee.on_record is not None:
            self._trainee.on_record(record)


def _size_of(batch: Any) -> int:
    """How many samples a batch has: as many as its first field, collated by torch or mmengine."""
    fields = list(batch.values()) if isinstance(batch, Mapping) else batch
    return len(fields[0])


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
