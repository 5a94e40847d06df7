"""The runners, which train and validate by a workflow and call hooks at the stages of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator import rng, steps
from disteval.estimator.context import Context
from disteval.estimator.course import Feed, Flow
from disteval.estimator.distributed import averages_gradients
from disteval.estimator.hooks import (
    CheckpointHook,
    DistSamplerSeedHook,
    IterTimerHook,
    OptimizerHook,
)
from disteval.estimator.hooks.build import Config, build, build_loggers, build_lr
from disteval.estimator.hooks.hook import Hook, priority_of
from disteval.estimator.records import Record, gather_record
from disteval.estimator.validation import validate
from disteval.estimator.workflow import Workflow, agree


class Phase(NamedTuple):
    """A part of a turn of the workflow, of which there is one record.

    Attributes:
        mode: ``train`` or ``val``.
        loader: This rank's batches.
        limit: The number of iterations; None for a whole pass over the loader.
    """

    mode: str
    loader: Any
    limit: int | None


class BaseRunner(Context, ABC):
    """Runs phases of training and validation, and calls hooks at their stages.

    The interface follows MMCV 1.x's runners. Averages in records are exact over all batches and
    ranks, and validation never changes what training draws. The arguments and attributes are those
    of `disteval.estimator.context.Context`.
    """

    limited_by: ClassVar[str]
    """The attribute that says where training ends: ``max_epochs`` or ``max_iters``."""

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
            data_loaders: For each entry of the workflow, this rank's batches: any iterable with a
                length. For training all ranks need equally many; for validation some may have none.
            workflow: Pairs of ``train`` or ``val`` and a count, of epochs in an `EpochBasedRunner`
                and of iterations in an `IterBasedRunner`.
            max_epochs: The end from now on, in epochs; None leaves it as it is.

        Returns:
            The records of this run, one for each phase.

        Raises:
            UsageError: On every rank, before anything begins, when the arguments can't work.
        """
        flows, end = agree(self, data_loaders, workflow, lambda it: self._end(it, max_epochs))
        trains = self.course.begin(flows, self.epoch)
        phases = [phase for flow in flows for phase in self._phases_of(flow)]
        if end is not None:
            self._set_end(end, phases)
        first = len(self.records)
        self.call_hook("before_run")
        if trains:
            self._warn_if_not_averaged()
            if self._generators is not None:
                rng.restore(self._generators)
            self._generators = None
        # A turn that was resumed in its middle is finished, also if training is at its end.
        while self.course.phase or not trains or self._is_due():
            for at in range(self.course.phase, len(phases)):
                self.course.phase = at
                mode, loader, limit = phases[at]
                if mode == "val":
                    self._validate(loader, limit)
                elif self._is_due() and (limit is None or self.course.done < limit):
                    self._train(loader, limit)
                self.course.done = 0
            self.course.phase = 0
            if not trains:
                break
        self.call_hook("after_run")
        if trains:
            self.course.pending = self.course.place()
        return self.records[first:]

    @abstractmethod
    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train on a loader, and publish the record."""

    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """Validate over a whole loader, and publish the record.

        Args:
            data_loader: This rank's batches.
            **kwargs: Arguments of each ``val_step``.
        """
        self._validate(data_loader, None, **kwargs)

    def _train(self, loader: Any, count: int | None, **kwargs: Any) -> None:
        """Train for a number of iterations, or else to the end of a pass; publish the record."""
        self._begin_phase("train", loader)
        feed = self.course.feed(loader, self.epoch)
        if not self.by_epoch:
            self.epoch = feed.epoch
        samples, begin, ended = 0, time.perf_counter(), False
        while not ended:
            if not feed.running:
                self.call_hook("before_train_epoch")
                feed.begin()
            for batch in feed.batches(to_the_end=count is None):
                samples += self._train_batch(feed, batch, **kwargs)
                self.course.done += count is not None
                if self.on_progress is not None:
                    done = (feed.done, len(loader)) if count is None else (self.course.done, count)
                    self.on_progress(*done)
                if count is not None and (self.course.done >= count or not self._is_due()):
                    ended = True
                    break
            if ended or count is None:
                ended, seconds = True, time.perf_counter() - begin
                self.publish(gather_record(self, "train", self.log_buffer, samples, seconds)[0])
            if feed.complete:
                self.call_hook("after_train_epoch")
                feed.end()
                self.epoch += 1

    def _train_batch(self, feed: Feed, batch: Any, **kwargs: Any) -> int:
        self.data_batch = batch
        self.inner_iter = feed.done - 1
        self.call_hook("before_train_iter")
        self.outputs = steps.train_step(self, batch, **kwargs)
        samples = steps.report(self.outputs, self.log_buffer)
        self.course.in_step = True
        try:
            self.call_hook("after_train_iter")
        finally:
            self.course.in_step = False
        self.iter += 1
        return samples

    def _validate(self, loader: Any, limit: int | None, **kwargs: Any) -> None:
        self._begin_phase("val", loader)
        self.publish(validate(self, loader, limit=limit, stages=True, **kwargs))
        self.call_hook("after_val_epoch")

    def _begin_phase(self, mode: str, loader: Any) -> None:
        self.mode = mode
        self.data_loader = loader
        self.log_buffer.clear()
        if mode == "train":
            self.model.train()
            self.course.pending = self._generators = None

    def register_hook(self, hook: Hook, priority: str | int = "NORMAL") -> None:
        """Attach a hook, after those of the same priority.

        Args:
            hook: An instance of a subclass of `Hook`.
            priority: A name of `disteval.estimator.hooks.PRIORITIES`, or an integer from 0 to 100;
                hooks are called in rising order.

        Raises:
            UsageError: The object is not a hook, or the priority is not known.
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
        momentum_config: Hook | None = None,
        timer_config: Config = {"type": "IterTimerHook"},  # noqa: B006 - it is only read
        custom_hooks_config: list[Any] | Mapping[str, Any] | Hook | None = None,
    ) -> None:
        """Attach the usual hooks, each at its usual priority, and one that has samplers shuffle.

        Each is given as a dict of its arguments, as a `Hook`, or as None to leave it out.
        Checkpoints come after hooks of priority ``NORMAL``, so that they hold the state of these,
        and loggers come last.

        Args:
            lr_config: ``dict(policy='step', step=[2])``; policies are ``fixed``, ``step``,
                ``cosine`` and ``poly``. ``VERY_HIGH``.
            optimizer_config: ``dict(grad_clip=dict(max_norm=1.0))``, or ``{}``; without it there is
                no backward pass, unless the model's step runs one. ``ABOVE_NORMAL``.
            checkpoint_config: ``dict(interval=1, max_keep_ckpts=3)``. ``BELOW_NORMAL``.
            log_config: ``dict(interval=10, hooks=[dict(type='TextLoggerHook')])``. ``VERY_LOW``.
            momentum_config: A hook. ``HIGH``.
            timer_config: ``LOW``.
            custom_hooks_config: A hook, a dict with ``type``, or a list of these; a dict may give a
                ``priority``, which is ``NORMAL`` otherwise.

        Raises:
            UsageError: An entry of a dict is not known. No hook was attached.
        """
        if momentum_config is not None and not isinstance(momentum_config, Hook):
            raise UsageError(f"momentum_config must be a Hook or None, not {momentum_config!r}")
        found: list[tuple[Hook | None, str | int]] = [
            (build_lr(lr_config, by_epoch=self.by_epoch), "VERY_HIGH"),
            (momentum_config, "HIGH"),
            (build(optimizer_config, OptimizerHook), "ABOVE_NORMAL"),
            (build(checkpoint_config, CheckpointHook, by_epoch=self.by_epoch), "BELOW_NORMAL"),
            (build(timer_config, IterTimerHook), "LOW"),
            (DistSamplerSeedHook(), "NORMAL"),
        ]
        found += [(hook, "VERY_LOW") for hook in build_loggers(log_config)]
        customs = custom_hooks_config or []
        for config in customs if isinstance(customs, list) else [customs]:
            settings = dict(config) if isinstance(config, Mapping) else {}
            priority = settings.pop("priority", "NORMAL")
            found.append((build(settings or config), priority_of(priority)))
        for hook, priority in found:
            if hook is not None:
                self.register_hook(hook, priority)

    def _warn_if_not_averaged(self) -> None:
        if self.rank == 0 and self.world_size > 1 and not averages_gradients(self.model):
            self.logger.warning(
                "nothing in %s averages gradients over the %d ranks, so each rank trains a model "
                "of its own, unless a hook or the optimizer averages them; once torch.distributed "
                "is initialised, wrap it with disteval.estimator.distributed.distribute",
                type(self.model).__name__,
                self.world_size,
            )

    def _end(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        if max_epochs is not None:
            check_count("max_epochs", max_epochs)
        end = self._end_of(flows, max_epochs)
        if end is not None:
            return check_count(self.limited_by, end)
        if any(flow.mode == "train" for flow in flows):
            raise UsageError(
                f"a workflow that trains needs an end: give {type(self).__name__} {self.limited_by}"
            )
        return None

    @abstractmethod
    def _phases_of(self, flow: Flow) -> list[Phase]:
        """Return the phases of one turn that an entry of the workflow stands for."""

    @abstractmethod
    def _end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        """Return the runner's `limited_by` for this run; None if it is not known."""

    @abstractmethod
    def _set_end(self, end: int, phases: Sequence[Phase]) -> None:
        """Set `max_epochs` and `max_iters` as hooks are to see them."""

    @abstractmethod
    def _is_due(self) -> bool:
        """Return whether training has not come to its end."""
