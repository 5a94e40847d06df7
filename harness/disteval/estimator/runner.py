"""The runners, which train and validate by a workflow and call hooks at the stages of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Any

from disteval.errors import TrainingError, UsageError
from disteval.estimator import rng, steps
from disteval.estimator.context import Context
from disteval.estimator.course import Feed, Flow
from disteval.estimator.distributed import fingerprints, inner, warn_if_not_averaged
from disteval.estimator.hooks import CheckpointHook, IterTimerHook, OptimizerHook
from disteval.estimator.hooks.build import Config, build, build_loggers, build_lr
from disteval.estimator.hooks.hook import Hook, priority_of
from disteval.estimator.records import Record
from disteval.estimator.workflow import Workflow, agree


class BaseRunner(Context):
    """Runs phases of training and validation, and calls hooks at their stages.

    The interface follows MMCV 1.x's runners. Averages in records are exact over all batches and
    ranks, and validation never changes what training draws. The arguments and attributes are those
    of `disteval.estimator.context.Context`.
    """

    _untrained: list[tuple[int, Any]] | None = None  # fingerprints before the first step

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
        flows, end = agree(self, data_loaders, workflow, max_epochs)
        trains = self.course.begin(flows, self.epoch)
        # Each of these phases of a turn has one record.
        phases = [flow for flow in flows for _ in range(flow.times if self.by_epoch else 1)]
        if end is not None:
            self._set_end(end, phases)
        first, begin, self.stopped = len(self.records), self.iter, None
        self._untrained = fingerprints(self.model) if trains else None
        with self.locks:  # which the hooks take
            self.call_hook("before_run")
            if trains:
                warn_if_not_averaged(self.model, self.backend, self.logger)
                if self._generators is not None:
                    rng.restore(self._generators)
                self._generators = None
            # A turn that was resumed in its middle is finished, also if training is at its end.
            while self.course.phase or not trains or self._is_due():
                for at in range(self.course.phase, len(phases)):
                    self.course.phase = at
                    mode, times, loader = phases[at]
                    limit = None if self.by_epoch else times
                    if mode == "val":
                        self._validate(loader, limit)
                    elif self._is_due() and (limit is None or self.course.done < limit):
                        self._train(loader, limit)
                    self.course.done = 0
                self.course.phase = 0
                if not trains:
                    break
            if self.iter > begin:
                self._check_trained()
            self.call_hook("after_run")
            if trains:
                self.course.pending = self.course.place()
        return self.records[first:]

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
        self.model.train()
        self.course.pending = self._generators = None
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
                buffer = self.log_buffer
                self.publish(steps.gather_record(self, "train", buffer, samples, seconds)[0])
            if feed.complete:
                self.call_hook("after_train_epoch")
                self._check_trained()
                feed.end()
                self.epoch += 1

    def _train_batch(self, feed: Feed, batch: Any, **kwargs: Any) -> int:
        self.data_batch = batch
        self.inner_iter = feed.done - 1
        self.call_hook("before_train_iter")
        self.outputs = steps.step(self, batch, train=True, **kwargs)
        samples = steps.report(self.outputs, self.log_buffer)
        loss = self.outputs["loss"].detach()
        if self.stop_on_nan and not loss.isfinite().all():
            raise TrainingError(
                f"the loss of rank {self.rank} is {float(loss)} at iteration {self.iter + 1}, "
                f"epoch {self.epoch + 1}; look at the learning rate and at this batch, or give the "
                f"runner stop_on_nan=False; the optimizer hook took no step on this loss"
            )
        self.course.in_step = True
        try:
            self.call_hook("after_train_iter")
        finally:
            self.course.in_step = False
        self.iter += 1
        return samples

    def _validate(self, loader: Any, limit: int | None, **kwargs: Any) -> None:
        self._begin_phase("val", loader)
        self.publish(steps.validate(self, loader, limit=limit, stages=True, **kwargs))
        self.call_hook("after_val_epoch")

    def _begin_phase(self, mode: str, loader: Any) -> None:
        self.mode, self.data_loader = mode, loader
        self.log_buffer.clear()

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
        """Attach the usual hooks, each at its usual priority.

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

    def _check_trained(self) -> None:
        """Refuse to go on if no optimizer has changed a parameter since the run began."""
        if self._untrained and self._untrained == fingerprints(self.model):
            raise UsageError(
                f"training has come to iteration {self.iter} and no parameter of "
                f"{type(inner(self.model)).__name__} was changed, because nothing steps the "
                f"optimizer, or it has another model's parameters; give register_training_hooks "
                f"optimizer_config={{}}, or let train_step run the backward pass and the step"
            )
        self._untrained = None

    def _set_end(self, end: int, phases: Sequence[Flow]) -> None:
        """Set `max_epochs` and `max_iters` as hooks are to see them."""
        if not self.by_epoch:
            self.max_iters = end
            return
        self.max_epochs = end
        if feeds := self.course.feeds:
            to_come = chain(phases[self.course.phase :], cycle(phases))
            passes = (len(phase.loader) for phase in to_come if phase.mode == "train")
            left = sum(islice(passes, max(end - self.epoch, 0)))
            self.max_iters = self.iter + left - sum(feed.done for feed in feeds)

    def _is_due(self) -> bool:
        """Return whether training has not come to its end."""
        end, done = self.max_iters, self.iter
        if self.by_epoch:
            end, done = self.max_epochs, self.epoch
        return self.stopped is None and (end is None or done < end)


class EpochBasedRunner(BaseRunner):
    """Runs whole passes: ``[('train', 2), ('val', 1)]`` is two epochs, then one validation.

    Each pass is a phase with a record. Training ends at ``max_epochs``; see `BaseRunner`.

    Raises:
        UsageError: ``max_iters`` was given.
    """

    by_epoch = True

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train for an epoch, or for the rest of one that was resumed.

        Args:
            data_loader: This rank's batches.
            **kwargs: Arguments of each ``train_step``.
        """
        self._train(data_loader, None, **kwargs)


class IterBasedRunner(BaseRunner):
    """Runs iterations: ``[('train', 100), ('val', 20)]`` is 100 steps, then at most 20 batches.

    Each entry is a phase with a record. A training loader that is exhausted is begun again, as a
    new epoch; a validation begins at its loader's first batch and counts no batch twice. Training
    ends at ``max_iters``, or after ``max_epochs`` passes over the first training loader.
    """

    by_epoch = False

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train for one iteration.

        Args:
            data_loader: This rank's batches, of which the next one is taken.
            **kwargs: Arguments of ``train_step``.
        """
        self.course.done = 0
        self._train(data_loader, 1, **kwargs)
