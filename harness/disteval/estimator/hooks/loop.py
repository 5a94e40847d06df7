"""The hooks that step the optimizer, shuffle samplers anew in each epoch, and measure time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from disteval.errors import UsageError
from disteval.estimator.context import Context
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.loaders import sampler_with_epoch

_CLIP = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")


@dataclass(eq=False)
class OptimizerHook(Hook):
    """Clears gradients after each training step, runs the backward pass of the loss, and steps.

    Args:
        grad_clip: Arguments of ``torch.nn.utils.clip_grad_norm_``, such as ``max_norm``; the norm
            before clipping is reported as ``grad_norm``. None clips nothing.
        detect_anomalous_params: Whether to log the names of parameters that got no gradient,
            whenever these change.

    Raises:
        UsageError: ``grad_clip`` has a key that is not known, or lacks ``max_norm``.
    """

    grad_clip: Mapping[str, Any] | None = None
    detect_anomalous_params: bool = False

    def __post_init__(self) -> None:
        self._named: list[str] = []
        if self.grad_clip is None:
            return
        unknown = [key for key in self.grad_clip if key not in _CLIP]
        if unknown or "max_norm" not in self.grad_clip:
            wrong = f"does not know {unknown[0]!r}" if unknown else "lacks 'max_norm'"
            raise UsageError(f"grad_clip {wrong}; known are {', '.join(_CLIP)}")

    def after_train_iter(self, runner: Context) -> None:
        """Run the backward pass, and step."""
        optimizers = runner.optimizers()
        if not optimizers:
            raise UsageError("OptimizerHook has nothing to step: give the runner an optimizer")
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        runner.outputs["loss"].backward()
        if self.detect_anomalous_params:
            self._detect(runner)
        if self.grad_clip is not None:
            clip = [p for p in runner.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.clip_grad_norm_(clip, **self.grad_clip)
            runner.log_buffer.update({"grad_norm": norm}, int(runner.outputs["num_samples"]))
        for optimizer in optimizers.values():
            optimizer.step()

    def _detect(self, runner: Context) -> None:
        found = [
            name
            for name, parameter in runner.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        if found != self._named and found:
            runner.logger.warning(
                "no gradient came to %s: the loss does not depend on them", ", ".join(found)
            )
        self._named = found


class DistSamplerSeedHook(Hook):
    """Calls ``set_epoch`` of the training loader's sampler; without it, all epochs are alike.

    The sampler is the loader's ``sampler``, its ``batch_sampler``, or the latter's ``sampler``:
    the first that has ``set_epoch``.
    """

    def before_train_epoch(self, runner: Context) -> None:
        """Call ``set_epoch``, if there is one."""
        sampler = sampler_with_epoch(runner.data_loader)
        if sampler is not None:
            sampler.set_epoch(runner.epoch)


class IterTimerHook(Hook):
    """Reports ``data_time``, the wait for a batch, and ``time``, the whole iteration, in seconds.

    They are this rank's, and appear in log lines but not in records.
    """

    def before_epoch(self, runner: Context) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()

    def before_iter(self, runner: Context) -> None:
        """Report the time until the batch was there."""
        waited = time.perf_counter() - self._begin
        runner.log_buffer.update({"data_time": waited}, record=False)

    def after_iter(self, runner: Context) -> None:
        """Report the time until the step was done."""
        now = time.perf_counter()
        runner.log_buffer.update({"time": now - self._begin}, record=False)
        self._begin = now
