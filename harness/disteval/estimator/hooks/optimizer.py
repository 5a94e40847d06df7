"""The hook that goes backward and steps the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

_CLIP = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")


class OptimizerHook(Hook):
    """After each training step: clears gradients, goes backward from the loss, and steps.

    Args:
        grad_clip: Arguments of ``torch.nn.utils.clip_grad_norm_``, such as ``max_norm``; the norm
            before clipping is reported as ``grad_norm``. None clips nothing.
        detect_anomalous_params: Whether to log the names of parameters that got no gradient, as
            often as others lack one.

    Raises:
        UsageError: ``grad_clip`` has a key that is not known, or lacks ``max_norm``.
    """

    def __init__(
        self,
        grad_clip: Mapping[str, Any] | None = None,
        detect_anomalous_params: bool = False,
    ) -> None:
        self.grad_clip = None if grad_clip is None else _checked(grad_clip)
        self.detect_anomalous_params = detect_anomalous_params
        self._named: list[str] = []

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Go backward and step."""
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

    def _detect(self, runner: BaseRunner) -> None:
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


def _checked(grad_clip: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [key for key in grad_clip if key not in _CLIP]
    if unknown or "max_norm" not in grad_clip:
        wrong = f"does not know {unknown[0]!r}" if unknown else "lacks 'max_norm'"
        raise UsageError(f"grad_clip {wrong}; known are {', '.join(_CLIP)}")
    return dict(grad_clip)
