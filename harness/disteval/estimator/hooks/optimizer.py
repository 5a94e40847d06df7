"""The hook that runs the backward pass and steps the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from disteval import traces
from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

_CLIP = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")


@dataclass(eq=False)
class OptimizerHook(Hook):
    """Clears gradients after each training step, runs the backward pass of the loss, and steps.

    With ``accumulate`` it steps once for several batches, whose losses count alike: also for the
    last batches of a pass or of training, which may be fewer. Gradients are averaged over the ranks
    once for each step. The state can't be saved between two steps, where gradients would be lost.

    Args:
        accumulate: The number of batches for each step.
        grad_clip: Arguments of ``torch.nn.utils.clip_grad_norm_``, such as ``max_norm``; the norm
            before clipping is reported as ``grad_norm``. None clips nothing.
    """

    grad_clip: Mapping[str, Any] | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        check_count("OptimizerHook: accumulate", self.accumulate)
        self._done, self._size = 0, 1  # batches since the last step, and of the current group
        self._local = ExitStack()  # in which gradients stay on this rank
        if self.grad_clip is None:
            return
        unknown = [key for key in self.grad_clip if key not in _CLIP]
        if unknown or "max_norm" not in self.grad_clip:
            wrong = f"does not know {unknown[0]!r}" if unknown else "lacks 'max_norm'"
            raise UsageError(f"grad_clip {wrong}; known are {', '.join(_CLIP)}")

    def before_run(self, runner: BaseRunner) -> None:
        """Forget gradients of a run that did not end."""
        self._local.close()
        self._done = 0

    def before_train_iter(self, runner: BaseRunner) -> None:
        """Let gradients of a group's batches, but for the last one, stay on this rank."""
        if self._done == 0:
            left = len(runner.data_loader) - runner.inner_iter
            if runner.max_iters is not None:
                left = min(left, runner.max_iters - runner.iter)
            self._size = max(min(self.accumulate, left), 1)
        if self._done + 1 < self._size and hasattr(runner.model, "no_sync"):
            self._local.enter_context(runner.model.no_sync())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, or refuse to lose the gradients of a group that is not complete."""
        if self._done:
            raise UsageError(
                f"a checkpoint after {self._done} of the {self._size} batches of a step would lose "
                f"their gradients; save after a step: an epoch, or a multiple of "
                f"accumulate={self.accumulate} iterations"
            )
        return {}

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Run the backward pass, and step at the end of a group of batches."""
        if runner.optimizer is None:
            raise UsageError("OptimizerHook has nothing to step: give the runner an optimizer")
        if self._done == 0:
            runner.optimizer.zero_grad()
        with traces.span("compute", "backward"):
            (runner.outputs["loss"] / self._size).backward()
        self._local.close()
        self._done += 1
        if self._done < self._size:
            return
        self._done = 0
        if self.grad_clip is not None:
            clip = [p for p in runner.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.clip_grad_norm_(clip, **self.grad_clip)
            runner.log_buffer.update({"grad_norm": norm}, int(runner.outputs["num_samples"]))
        with traces.span("compute", "optimizer"):
            runner.optimizer.step()
