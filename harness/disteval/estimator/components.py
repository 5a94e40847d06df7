"""What a runner holds: model, optimizer, hooks in their order, and what hooks look at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator.hooks.build import Config, build, build_loggers, build_lr
from disteval.estimator.hooks.checkpoint import CheckpointHook
from disteval.estimator.hooks.hook import Hook, priority_of
from disteval.estimator.hooks.optimizer import OptimizerHook
from disteval.estimator.hooks.sampler_seed import DistSamplerSeedHook
from disteval.estimator.hooks.timer import IterTimerHook
from disteval.estimator.log_buffer import LogBuffer
from disteval.estimator.records import Record
from disteval.registry import get_dist_backend

_ONLY = "optimizer"  # what a runner's single optimizer is called


class Components:
    """The plain attributes of a runner, and its hooks; see `disteval.estimator.runner.BaseRunner`.

    Attributes:
        epoch: Passes over the training data that are complete.
        iter: Training iterations that are complete.
        inner_iter: The current iteration's place in its pass over a loader, from 0.
        mode: ``train`` or ``val``.
        hooks: In the order in which they are called.
        log_buffer: What the steps of the current phase reported.
        data_loader, data_batch, outputs: Of the current iteration.
        records: One a phase; see `disteval.estimator.records`.
        on_record: Called with each record.
        on_progress: Called after each batch of a phase, with the batches done and all of them.
        sampler_seed: Of the training loader's sampler, where it has one.
    """

    by_epoch: ClassVar[bool]
    """What hooks that are made from dicts count, unless told otherwise: epochs or iterations."""

    def __init__(
        self,
        model: Any,
        batch_processor: Callable[..., Any] | None,
        optimizer: Any,
        work_dir: str | Path | None,
        logger: logging.Logger | None,
        meta: Mapping[str, Any] | None,
        backend: BaseDistBackend | None,
    ) -> None:
        self.model = model
        self.batch_processor = batch_processor
        self.optimizer = optimizer
        self.work_dir = None if work_dir is None else Path(work_dir)
        self.logger = logger or logging.getLogger("disteval.estimator")
        self.meta = dict(meta or {})
        self.hooks: list[Hook] = []
        self.log_buffer = LogBuffer()
        self.mode = "train"
        self.epoch = self.iter = self.inner_iter = 0
        self.max_epochs: int | None = None
        self.max_iters: int | None = None
        self.data_loader: Any = None
        self.data_batch: Any = None
        self.outputs: Any = None
        self.records: list[Record] = []
        self.on_record: Callable[[Record], None] | None = None
        self.on_progress: Callable[[int, int], None] | None = None
        self.sampler_seed: int | None = None
        self._backend = backend

    @property
    def backend(self) -> BaseDistBackend:
        """What moves what ranks tell each other."""
        return self._backend or _fitting_backend()

    @backend.setter
    def backend(self, backend: BaseDistBackend | None) -> None:
        self._backend = backend

    @property
    def rank(self) -> int:
        """This process's rank; 0 where there are no others."""
        return self.backend.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.backend.world_size

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers by name; a single one is called ``optimizer``."""
        if isinstance(self.optimizer, Mapping):
            return dict(self.optimizer)
        return {} if self.optimizer is None else {_ONLY: self.optimizer}

    def current_lr(self) -> list[float] | dict[str, list[float]]:
        """Return each parameter group's learning rate; by name where there are several optimizers.

        Raises:
            UsageError: There is no optimizer.
        """
        if self.optimizer is None:
            raise UsageError("there is no learning rate: give the runner an optimizer")
        rates = {
            name: [float(group["lr"]) for group in each.param_groups]
            for name, each in self.optimizers().items()
        }
        return rates if isinstance(self.optimizer, Mapping) else rates[_ONLY]

    def first_lr(self) -> float | None:
        """Return the first parameter group's learning rate; None without an optimizer."""
        for each in self.optimizers().values():
            return float(each.param_groups[0]["lr"])
        return None

    def register_hook(self, hook: Hook, priority: str | int = "NORMAL") -> None:
        """Attach a hook, after those of the same priority.

        Args:
            hook: An instance of a subclass of `Hook`.
            priority: A name of `disteval.estimator.hooks.PRIORITIES`, or an integer from 0 to 100;
                the lower is called first.

        Raises:
            UsageError: It is no hook, or the priority is not known.
        """
        if not isinstance(hook, Hook):
            raise UsageError(f"{hook!r} is no hook; subclass disteval.estimator.hooks.Hook")
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

        Each is given as a dict of its arguments, as a `Hook`, or as None for none. Checkpoints come
        after hooks of priority ``NORMAL``, so what these keep is in them, and loggers come last.

        Args:
            lr_config: ``dict(policy='step', step=[2])``; policies are ``fixed``, ``step``,
                ``cosine`` and ``poly``. ``VERY_HIGH``.
            optimizer_config: ``dict(grad_clip=dict(max_norm=1.0))``, or ``{}``; without it nothing
                goes backward unless the model's step does. ``ABOVE_NORMAL``.
            checkpoint_config: ``dict(interval=1, max_keep_ckpts=3)``. ``BELOW_NORMAL``.
            log_config: ``dict(interval=10, hooks=[dict(type='TextLoggerHook')])``. ``VERY_LOW``.
            momentum_config: A hook. ``HIGH``.
            timer_config: ``LOW``.
            custom_hooks_config: A hook, a dict with ``type``, or a list of these; a dict may give a
                ``priority``, which is ``NORMAL`` otherwise.

        Raises:
            UsageError: Something in a dict is not known; says what is. Nothing was attached.
        """
        if momentum_config is not None and not isinstance(momentum_config, Hook):
            raise UsageError(f"momentum_config must be a Hook or None, not {momentum_config!r}")
        unit = {"by_epoch": self.by_epoch}
        found: list[tuple[Hook | None, str | int]] = [
            (build_lr(lr_config, **unit), "VERY_HIGH"),
            (momentum_config, "HIGH"),
            (build(optimizer_config, OptimizerHook), "ABOVE_NORMAL"),
            (build(checkpoint_config, CheckpointHook, **unit), "BELOW_NORMAL"),
            (build(timer_config, IterTimerHook), "LOW"),
            (DistSamplerSeedHook(), "NORMAL"),
        ]
        found += [(hook, "VERY_LOW") for hook in build_loggers(log_config)]
        custom = custom_hooks_config or []
        for config in custom if isinstance(custom, list) else [custom]:
            settings = dict(config) if isinstance(config, Mapping) else {}
            priority = settings.pop("priority", "NORMAL")
            found.append((build(settings or config), priority_of(priority)))
        for hook, priority in found:
            if hook is not None:
                self.register_hook(hook, priority)

    def call_hook(self, stage: str, *args: Any) -> None:
        """Call one stage of every hook."""
        for hook in list(self.hooks):
            getattr(hook, stage)(self, *args)

    def publish(self, record: Record) -> None:
        """Keep a record, and tell it to `on_record` and to the hooks."""
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)
        self.call_hook("after_record", record)


def _fitting_backend() -> BaseDistBackend:
    """Return the backend for torch.distributed's default group, or for one process without it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return get_dist_backend("non_dist")
    moves_cpu = "cpu" in str(torch.distributed.get_backend_config())
    return get_dist_backend("torch_cpu" if moves_cpu else "torch_cuda")
