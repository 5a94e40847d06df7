"""The runners, which train and validate by a workflow and call hooks at the stages of a run."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from disteval import traces
from disteval.arguments import check_choice, check_count, check_path, unwritable
from disteval.contract import BaseDistBackend
from disteval.default_backend import get_dist_backend
from disteval.errors import TrainingError, UsageError
from disteval.estimator import rng
from disteval.estimator.checkpoint import (
    UNCHANGED,
    Checkpoints,
    load_weights,
    read_checkpoint,
    read_together,
    resume_model,
    state_of,
    weights_of,
)
from disteval.estimator.distributed import fingerprints, inner, warn_if_not_averaged
from disteval.estimator.hooks import (
    CheckpointHook,
    Config,
    Hook,
    LrHook,
    OptimizerHook,
    TextLoggerHook,
    build,
)
from disteval.estimator.hooks.hook import priority_of
from disteval.estimator.loaders import check_length, whole
from disteval.estimator.position import Position, WorkflowEntry
from disteval.estimator.records import LogBuffer, Record, named_metrics, number
from disteval.estimator.validation import gather_record, report, validate
from disteval.evaluation.agreement import agree, on_rank_0
from disteval.files import lock_folder
from disteval.metrics import BaseMetric

Workflow = Sequence[tuple[str, int]]


class BaseRunner:
    """Runs phases of training and validation, and calls hooks at their stages.

    The interface follows MMCV 1.x's runners. Averages in records are exact over all batches and
    ranks, and validation never changes what training draws. Hooks get the runner, read its
    attributes, and may call its methods.

    Args:
        model: It has ``train_step(data, optimizer)`` and ``val_step(data, optimizer)``, which
            return a dict with ``loss`` (a tensor; for training), ``log_vars`` (numbers by name) and
            ``num_samples``; and for accuracy ``scores`` (B, classes) and ``labels`` (B,). On
            several ranks wrap it with `disteval.estimator.distribute`.
        optimizer: A torch optimizer.
        work_dir: The folder in which hooks write, and which a run has for itself.
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
        backend: Carries messages between ranks, an instance or a name. None stands for the
            default, see `disteval.get_dist_backend`.

    Raises:
        UsageError: Both ``max_iters`` and ``max_epochs`` were given, or an argument can't work.

    Attributes:
        epoch: Complete passes over the training data.
        iter: Complete training iterations.
        inner_iter: The current iteration's place among those of this rank in its pass, from 0.
        mode: ``train`` or ``val``.
        hooks: The hooks in the order in which they are called.
        log_buffer: The variables that the steps of the current phase reported.
        data_loader, data_batch, outputs: Those of the current iteration.
        samples: The samples that this rank has trained on in the current phase.
        records: One for each phase; see `disteval.estimator.records`.
        stopped: Why a hook ended training early; None while it did not.
        on_record: Called with each record.
        on_progress: Called after each batch with the number of batches done and their total.
        training: The training that checkpoints belong to, which `resume` takes from the file.
    """

    by_epoch: ClassVar[bool]
    """Whether the runner counts epochs, or else iterations; hooks made from dicts do the same."""

    def __init__(
        self,
        model: Any,
        *,
        optimizer: Any = None,
        work_dir: str | Path | None = None,
        logger: logging.Logger | None = None,
        meta: Mapping[str, Any] | None = None,
        max_iters: int | None = None,
        max_epochs: int | None = None,
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
        self.model, self.optimizer = model, optimizer
        self.metrics = named_metrics(metrics)
        self.autocast, self.stop_on_nan = autocast, stop_on_nan
        self.work_dir = None if work_dir is None else check_path("work_dir", work_dir)
        self.logger = logger or logging.getLogger("disteval.estimator")
        self.meta = dict(meta or {})
        self.max_epochs, self.max_iters = max_epochs, max_iters
        self.hooks: list[Any] = []
        self.log_buffer = LogBuffer()
        self.mode = "train"
        self.epoch = self.iter = self.inner_iter = self.samples = 0
        self.data_loader: Any = None
        self.data_batch: Any = None
        self.outputs: Any = None
        self.records: list[Record] = []
        self.stopped: str | None = None
        self.on_record: Callable[[Record], None] | None = None
        self.on_progress: Callable[[int, int], None] | None = None
        self.training = secrets.token_hex(8)
        self._backend = backend
        self._position = Position(self.by_epoch)
        self._generators: rng.RngState | None = None  # with which the next run begins
        self._earlier: list[Any] = []  # sums of the current phase before it was resumed
        self._begun = 0  # the iteration at which the run began
        self._untrained: list[tuple[int, Any]] | None = None  # fingerprints before the first step

    def run(
        self, data_loaders: Sequence[Any], workflow: Workflow, max_epochs: int | None = None
    ) -> list[Record]:
        """Run a workflow, turn after turn, until training has come to its end.

        The end is a total: a runner at epoch 2 with ``max_epochs`` 5 trains 3 more epochs, and one
        that is at its end trains none and returns no records. The turn in which training ends is
        finished, with its validation. A workflow of ``val`` alone is run for one turn. A second
        call continues from ``epoch`` and ``iter``. After `resume` with the same workflow, a run
        continues within the turn and finishes it.

        Args:
            data_loaders: For each entry of the workflow, a loader. For training, this rank's
                batches: any iterable with a length, and all ranks need equally many. For
                validation, a ``DataLoader`` over the whole data set, the same on every rank.
            workflow: Pairs of ``train`` or ``val`` and a count, of epochs in an `EpochBasedRunner`
                and of iterations in an `IterBasedRunner`. All entries that train have one loader.
            max_epochs: The end from now on, in epochs; None leaves it as it is.

        Returns:
            The records of this run, one for each phase.

        Raises:
            UsageError: On every rank, before anything begins, when the arguments can't work.
            RankError: On every rank, when those of some ranks can't.
        """
        entries, end = self._agree(data_loaders, workflow, max_epochs)
        position = self._position
        trains = position.begin(entries)
        self.epoch -= position.complete  # a pass that only lacks its end
        # Each of these phases of a turn has one record.
        phases = [entry for entry in entries for _ in range(entry.times if self.by_epoch else 1)]
        if end is not None and not self.by_epoch:
            self.max_iters = end
        elif end is not None:
            self.max_epochs = end
            if trains:  # hooks see the iteration, too
                left = max(end - self.epoch, 0) * len(position.loader)
                self.max_iters = self.iter + left - position.drawn
        first, self._begun, self.stopped = len(self.records), self.iter, None
        self._untrained = fingerprints(self.model) if trains else None
        with ExitStack() as stack:
            self._lock_folder(stack)
            self.call_hook("before_run")
            if trains:
                warn_if_not_averaged(self.model, self.backend, self.logger)
                if self._generators is not None:
                    rng.restore(self._generators)
                self._generators = None
            # A turn that was resumed in its middle is finished, also if training is at its end.
            while position.phase or position.done or not trains or self._is_due():
                for at in range(position.phase, len(phases)):
                    mode, times, loader = phases[at]
                    limit = None if self.by_epoch else times
                    if mode == "val":
                        self._begin_phase("val", loader)
                        self.publish(validate(self, loader, limit=limit, stages=True))
                        self.call_hook("after_val_epoch")
                    elif position.done or self._is_due():
                        self._train(loader, limit or len(loader))
                    position.begin_phase(at + 1)
                position.begin_phase(0)
                if not trains:
                    break
            self._check_trained()
            self.call_hook("after_run")
            if trains:
                position.pending = position.state()
        return self.records[first:]

    def _train(self, loader: Any, count: int) -> None:
        """Train for a number of iterations, which is that of a pass if epochs are counted."""
        self._begin_phase("train", loader)
        self.model.train()
        position = self._position
        position.pending = self._generators = None
        position.count = count
        (self.samples, self._earlier), position.reported = position.reported, (0, [])
        begin, over = time.perf_counter(), self._is_over()
        while True:
            if not over and not position.complete:
                if not position.running:
                    self.call_hook("before_train_epoch")
                    position.begin_pass(self.epoch)
                self._train_batch(position.draw())
                position.done += 1
                if self.on_progress is not None:
                    self.on_progress(position.done, count)
                over = self._is_over()
            if over:
                sums = [self.log_buffer.sums(), *self._earlier]
                record = gather_record(self, "train", sums, time.perf_counter() - begin)
                position.begin_phase(position.phase + 1)  # though not all hooks were called
                self.publish(record)
            if position.complete:
                self.call_hook("after_train_epoch")
                self._check_trained()
                position.end_pass()
                self.epoch += 1
            if over:
                return
            over = self._is_over()

    def _is_over(self) -> bool:
        """Return whether a phase of training has its iterations, or training ends within it."""
        position = self._position
        return position.done >= position.count or not (self.by_epoch or self._is_due())

    def _train_batch(self, batch: Any) -> None:
        self.data_batch, self.inner_iter = batch, self._position.drawn - 1
        self.call_hook("before_train_iter")
        outputs = self.outputs = self.step(batch, train=True)
        self.samples += report(outputs, self.log_buffer)
        loss = outputs["loss"].detach()
        if self.stop_on_nan and not loss.isfinite().all():
            raise TrainingError(
                f"the loss of rank {self.rank} is {float(loss)} at iteration {self.iter + 1}, "
                f"epoch {self.epoch + 1}; look at the learning rate and at this batch, or give the "
                f"runner stop_on_nan=False; the optimizer hook took no step on this loss"
            )
        self._position.in_step = True
        try:
            self.call_hook("after_train_iter")
        finally:
            self._position.in_step = False
        self.iter += 1

    def _begin_phase(self, mode: str, loader: Any) -> None:
        self.mode, self.data_loader, self.samples = mode, loader, 0
        self.log_buffer.clear()
        self._earlier = []

    def step(self, data: Any, *, train: bool) -> dict[str, Any]:
        """Run a step of the model on a batch, and return its result if nothing is missing from it.

        Validation runs on the model itself, in which no rank waits for another.
        """
        name = "train_step" if train else "val_step"
        model = inner(self.model)
        if not train:
            return _checked(model.val_step(data, self.optimizer), f"{type(model).__name__}.{name}")
        # A wrapper that has a step of its own averages the gradients.
        owner = self.model if hasattr(self.model, name) else model
        device = next((each.device.type for each in model.parameters()), "cpu")
        precision = torch.autocast(device, torch.bfloat16) if self.autocast else nullcontext()
        with traces.span("compute", name), precision:
            outputs = owner.train_step(data, self.optimizer)
        return _checked(outputs, f"{type(model).__name__}.{name}", loss=True)

    def publish(self, record: Record) -> None:
        """Keep a record, and pass it to `on_record` and to the hooks."""
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)
        self.call_hook("after_record", record)

    def stop(self, reason: str) -> None:
        """End training with the current phase; the turn of the workflow is finished."""
        self.stopped = reason
        if self.rank == 0:
            self.logger.warning("training ends at epoch %d: %s", self.trained()[0], reason)

    def trained(self) -> tuple[int, int]:
        """Return the complete epochs and iterations, also at the stages of the last ones."""
        return self._position.trained(self.epoch, self.iter)

    def call_hook(self, stage: str, *args: Any) -> None:
        """Call one stage of every hook, in the order of their priorities."""
        for hook in list(self.hooks):
            getattr(hook, stage)(self, *args)

    def register_hook(self, hook: Hook, priority: str | int = "NORMAL") -> None:
        """Attach a hook, after those of the same priority; hooks are called in rising order.

        The priority is a name of `disteval.estimator.hooks.PRIORITIES`, or an integer up to 100.
        """
        if not isinstance(hook, Hook):
            raise UsageError(f"{hook!r} is not a hook; subclass disteval.estimator.hooks.Hook")
        hook.priority = priority_of(priority)
        at = sum(other.priority <= hook.priority for other in self.hooks)
        self.hooks.insert(at, hook)

    def register_training_hooks(
        self,
        lr_config: Config,
        optimizer_config: Config = None,
        checkpoint_config: Config = None,
        log_config: Config = None,
        custom_hooks_config: list[Any] | Mapping[str, Any] | Hook | None = None,
    ) -> None:
        """Attach the usual hooks, each given as a dict of its arguments, as a `Hook`, or as None.

        Checkpoints come after custom hooks, so that they hold the state of these, and loggers last.

        Args:
            lr_config: ``dict(policy='step', step=[2])``; policies are ``fixed``, ``step`` and
                ``cosine``. ``VERY_HIGH``.
            optimizer_config: ``dict(grad_clip=dict(max_norm=1.0))``, or ``{}``; without it there is
                no backward pass, unless the model's step runs one. ``ABOVE_NORMAL``.
            checkpoint_config: ``dict(interval=1, max_keep_ckpts=3)``. ``BELOW_NORMAL``.
            log_config: ``dict(interval=10)``. ``VERY_LOW``.
            custom_hooks_config: One or a list; a dict has a ``type``, and may have a ``priority``,
                ``NORMAL`` otherwise.

        Raises:
            UsageError: An entry of a dict is not known. No hook was attached.
        """
        found = [
            (build(lr_config, LrHook, by_epoch=self.by_epoch), "VERY_HIGH"),
            (build(optimizer_config, OptimizerHook), "ABOVE_NORMAL"),
            (build(checkpoint_config, CheckpointHook, by_epoch=self.by_epoch), "BELOW_NORMAL"),
            (build(log_config, TextLoggerHook), "VERY_LOW"),
        ]
        customs = custom_hooks_config
        for config in customs if isinstance(customs, list) else [customs]:
            settings = dict(config) if isinstance(config, Mapping) else {}
            priority = settings.pop("priority", "NORMAL")
            priority_of(priority)
            found.append((build(settings or config), priority))
        for hook, priority in found:
            if hook is not None:
                self.register_hook(hook, priority)

    @property
    def backend(self) -> BaseDistBackend:
        """The backend that carries messages between ranks."""
        return get_dist_backend(self._backend)

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

    def current_lr(self) -> list[float]:
        """Return each parameter group's learning rate; an empty list without an optimizer."""
        return [float(group["lr"]) for group in getattr(self.optimizer, "param_groups", ())]

    def save_checkpoint(self, out_dir: str | Path, name: str | None = None) -> Path:
        """Write the state to a file; every rank must call this, and rank 0 writes.

        The file appears whole or not at all, and ``checkpoints.json`` beside it has its SHA-256.

        Args:
            out_dir: The folder, which is made if it is missing.
            name: The file's name; None for ``epoch_3.pt`` or ``iter_30.pt``, with the number of
                epochs or iterations that are complete.

        Raises:
            RankError: On every rank, when rank 0 could not write.
        """
        epoch, iteration = self.trained()
        name = name or (f"epoch_{epoch}.pt" if self.by_epoch else f"iter_{iteration}.pt")
        path = check_path("out_dir", out_dir) / name
        state = self.state_dict()
        add = partial(Checkpoints(path.parent).add, name, state)
        on_rank_0(self.backend, add, f"write {path}", UNCHANGED)
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state in plain containers and tensors; every rank must call this.

        It holds ``state_dict`` (the weights, without ``module.``), ``optimizer``, ``epoch``,
        ``iter``, ``hooks``, ``rng`` (of every rank), ``position`` and ``meta``.
        All but ``rng`` is of this rank, and a checkpoint keeps the state of rank 0.
        """
        epoch, iteration = self.trained()
        sums = [self.log_buffer.sums(), *self._earlier]
        position = dict(self._position.state(self.samples, sums))
        own = {key: position.pop(key) for key in ("start", "reported")}
        own["now"] = self._generators or rng.capture()
        state = {
            "meta": {**self.meta, "training": self.training},
            "state_dict": weights_of(self.model),
            "epoch": epoch,
            "iter": iteration,
            "hooks": [[type(hook).__name__, hook.state_dict()] for hook in self.hooks],
            "rng": self.backend.all_gather_object(own),
            "position": position,
        }
        if self.optimizer is not None:
            state["optimizer"] = state_of(self.optimizer)
        return state

    def resume(self, checkpoint: str | Path | Mapping[str, Any]) -> None:
        """Take the state of a checkpoint, so that `run` continues there; every rank must call this.

        With the same world size, training that was resumed gives the same results to the bit as
        training that was not interrupted, also in the middle of an epoch. With another world size
        the generators are seeded from ``meta['seed']`` (else the sampler's seed, else 0), the
        iteration and the rank, an epoch that was interrupted is begun anew, and the record of a
        phase that was interrupted covers the iterations since then.

        Args:
            checkpoint: A file of `save_checkpoint`, the result of `state_dict`, or a folder, whose
                newest whole checkpoint is taken, with a warning for each newer one that is damaged.

        Raises:
            UsageError: The folder has no checkpoint, or those of several trainings; or ranks read
                different files.
            WeightsError: The checkpoint is missing, damaged or incomplete, or does not fit.
            RankError: On every rank, when some rank can't read it.
        """
        state, name = checkpoint, "the state"
        if not isinstance(state, Mapping):
            state, name = read_together(self.backend, state, self.logger.warning)
        resume_model(self.model, self.optimizer, state, name)
        self.epoch, self.iter = state["epoch"], state["iter"]
        self.training = state.get("meta", {}).get("training", self.training)
        hooks = list(self.hooks)
        for kind, kept in state["hooks"]:
            hook = next((each for each in hooks if type(each).__name__ == kind), None)
            if hook is not None:
                hooks.remove(hook)
                hook.load_state_dict(kept)
            elif kept:
                self.logger.warning("the checkpoint has a state of %s, a hook not here", kind)
        self._position.resume(state, self.world_size, self.rank)
        # Creating the loaders may draw from the generators before the next run begins.
        self._generators = rng.capture()

    def _lock_folder(self, stack: ExitStack) -> None:
        """Keep other trainings out of `work_dir` until the stack is closed.

        Raises:
            UsageError: On every rank, when rank 0 can't write there, or another training does; or
                a hook has nowhere to write.
        """
        folder = self.work_dir
        if folder is None:
            for hook in self.hooks:
                if hook.writes:
                    raise UsageError(
                        f"{type(hook).__name__} has nowhere to write; give the runner a work_dir"
                    )
            return

        def lock() -> None:
            try:
                found = lock_folder(folder)
            except OSError as error:
                raise unwritable("work_dir", folder, error) from error
            if found is not None:
                stack.callback(found.release)

        on_rank_0(self.backend, lock, f"lock {folder}")

    def _agree(
        self, loaders: Any, workflow: Any, max_epochs: int | None
    ) -> tuple[list[WorkflowEntry], int | None]:
        """Return a run's entries and its end, if they can work and all ranks have the same."""
        entries: list[WorkflowEntry] = []
        end, error = None, None
        try:
            entries = self._entries(loaders, workflow)
            end = self._end(entries, max_epochs)
        except Exception as caught:  # the other ranks wait for this one
            error = caught
        given = {
            "the workflow": [entry[:2] for entry in entries],
            "the end of training": end,
            "the epoch": self.epoch,
            "the iteration": self.iter,
            "the number of training batches": [
                len(entry.loader) for entry in entries if entry.mode == "train"
            ],
        }
        agree(self.backend, given, error)
        return entries, end

    def _entries(self, loaders: Any, workflow: Any) -> list[WorkflowEntry]:
        pairs = check_workflow(workflow)
        if not isinstance(loaders, Sequence) or len(loaders) != len(pairs):
            given = len(loaders) if isinstance(loaders, Sequence) else repr(loaders)
            raise UsageError(
                f"a workflow of {len(pairs)} entries needs a list of as many loaders, not {given}"
            )
        name, model = type(inner(self.model)).__name__, self.model
        entries = []
        for at, ((mode, times), loader) in enumerate(zip(pairs, loaders, strict=True)):
            if not callable(getattr(inner(model), f"{mode}_step", None)):
                raise UsageError(f"{name} has no {mode}_step(data, optimizer); add one")
            if mode == "val":
                whole(loader)
            else:
                check_length(loader, f"the loader of workflow entry {at}, {mode!r},")
            entries.append(WorkflowEntry(mode, times, loader))
        if len({id(entry.loader) for entry in entries if entry.mode == "train"}) > 1:
            raise UsageError(
                "the workflow trains with several loaders; give one loader for all its entries "
                "that train, such as one over a torch.utils.data.ConcatDataset"
            )
        past = isinstance(model, DistributedDataParallel) and not hasattr(model, "train_step")
        if past and self.world_size > 1 and any(entry.mode == "train" for entry in entries):
            raise UsageError(
                f"{name}.train_step would go past DistributedDataParallel, so gradients would not "
                f"be averaged; wrap the model with disteval.estimator.distribute "
                f"instead"
            )
        return entries

    def _end(self, entries: list[WorkflowEntry], max_epochs: int | None) -> int | None:
        """Return the epoch, or else the iteration, at which training ends."""
        epochs = self.max_epochs if max_epochs is None else max_epochs
        trained = [entry.loader for entry in entries if entry.mode == "train"]
        if epochs is not None:
            check_count("max_epochs", epochs)
        end, unit = (epochs, "max_epochs") if self.by_epoch else (self.max_iters, "max_iters")
        if not self.by_epoch and trained and epochs is not None:
            end = epochs * len(trained[0])
        if end is None and trained:
            raise UsageError(
                f"a workflow that trains needs an end: give {type(self).__name__} {unit}"
            )
        return None if end is None else check_count(unit, end)

    def _is_due(self) -> bool:
        """Return whether training has not come to its end."""
        end, done = (self.max_epochs, self.epoch) if self.by_epoch else (self.max_iters, self.iter)
        return self.stopped is None and (end is None or done < end)

    def _check_trained(self) -> None:
        """Refuse to go on if no optimizer has changed a parameter since the run began."""
        if self.iter == self._begun:
            return
        if self._untrained and self._untrained == fingerprints(self.model):
            raise UsageError(
                f"training has come to iteration {self.iter} and no parameter of "
                f"{type(inner(self.model)).__name__} was changed, because nothing steps the "
                f"optimizer, or it has another model's parameters; give register_training_hooks "
                f"optimizer_config={{}}, or let train_step run the backward pass and the step"
            )
        self._untrained = None


class EpochBasedRunner(BaseRunner):
    """Runs whole passes: ``[('train', 2), ('val', 1)]`` is two epochs, then one validation.

    Each pass is a phase with a record. Training ends at ``max_epochs``; see `BaseRunner`.
    """

    by_epoch = True


class IterBasedRunner(BaseRunner):
    """Runs iterations: ``[('train', 100), ('val', 20)]`` is 100 steps, then at most 20 batches.

    Each entry is a phase with a record. A training loader that is exhausted is begun again, as a
    new epoch; a validation begins at its data set's first batch, and its batches are those of all
    ranks together. Training ends at ``max_iters``, or after ``max_epochs`` passes over the first
    training loader.
    """

    by_epoch = False


def check_workflow(workflow: Any) -> list[tuple[str, int]]:
    """Return the entries of a workflow; UsageError if they are not pairs of a mode and a count."""
    is_list = isinstance(workflow, Sequence) and not isinstance(workflow, str) and len(workflow) > 0
    if not is_list or any(isinstance(e, str) or len(e) != 2 for e in workflow):
        raise UsageError(
            f"a workflow is a list of pairs such as [('train', 1), ('val', 1)], not {workflow!r}"
        )
    return [
        (
            check_choice("the workflow's mode", mode, ("train", "val")),
            check_count(f"the workflow's count for {mode!r}", times),
        )
        for mode, times in workflow
    ]


def _checked(outputs: Any, origin: str, *, loss: bool = False) -> dict[str, Any]:
    needed = [*(["loss"] if loss else []), "log_vars", "num_samples"]
    has = list(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    missing = [key for key in needed if key not in has or outputs[key] is None]
    if missing:
        raise UsageError(
            f"{origin} returned {has}, without {missing[0]!r}; it must return a dict with "
            f"{', '.join(needed)}"
        )
    if loss and not callable(getattr(outputs["loss"], "backward", None)):
        raise UsageError(f"the loss of {origin} must be a tensor, not {outputs['loss']!r}")
    if not isinstance(outputs["log_vars"], Mapping):
        raise UsageError(f"log_vars of {origin} must be a dict, not {outputs['log_vars']!r}")
    samples = number("num_samples", outputs["num_samples"])
    if samples < 0 or samples != int(samples):
        raise UsageError(f"num_samples of {origin} must be a number of samples, not {samples}")
    if ("scores" in outputs) != ("labels" in outputs):
        raise UsageError(f"{origin} returned only one of scores and labels; accuracy needs both")
    return dict(outputs)
