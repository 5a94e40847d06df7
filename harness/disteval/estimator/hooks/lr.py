"""Learning rates by schedule, each a function of how far training has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disteval.arguments import check_choice, is_count
from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


@dataclass(eq=False, kw_only=True)
class LrHook(Hook):
    """Sets each parameter group's learning rate before each epoch or iteration.

    A schedule keeps no state: a rate follows from the group's first rate, which the optimizer
    keeps as ``initial_lr``, and from the runner's epoch or iteration. A subclass gives `get_lr`;
    this class keeps the first rate, except for a warm-up.

    Args:
        by_epoch: Whether the schedule counts epochs, or else iterations.
        warmup: ``linear`` for a rate that rises at first; None for no warm-up.
        warmup_iters: The length of the warm-up in iterations.
        warmup_ratio: Above 0, up to 1: the factor of the schedule's rate at the start.
    """

    by_epoch: bool = True
    warmup: str | None = None
    warmup_iters: int = 0
    warmup_ratio: float = 0.1

    def __post_init__(self) -> None:
        if self.warmup is None:
            return
        check_choice("warmup", self.warmup, ("linear",))
        if self.warmup_iters < 1 or not 0 < self.warmup_ratio <= 1:
            raise UsageError(
                f"warmup needs warmup_iters from 1 up and warmup_ratio above 0 up to 1, not "
                f"{self.warmup_iters} and {self.warmup_ratio}"
            )

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the current rate, given a group's first rate; without a schedule this one."""
        return base_lr

    def before_run(self, runner: BaseRunner) -> None:
        """Keep every group's first rate."""
        if runner.optimizer is None:
            raise UsageError(f"{type(self).__name__} needs a runner with an optimizer")
        for group in runner.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def before_train_epoch(self, runner: BaseRunner) -> None:
        """Set the rates of an epoch."""
        self._set(runner)

    def before_train_iter(self, runner: BaseRunner) -> None:
        """Set the rates of an iteration."""
        if not self.by_epoch or self.warmup is not None:
            self._set(runner)

    def progress(self, runner: BaseRunner) -> tuple[int, int]:
        """Return how far training has come and how far it goes, in epochs or iterations."""
        done, end, unit = runner.iter, runner.max_iters, "iters"
        if self.by_epoch:
            done, end, unit = runner.epoch, runner.max_epochs, "epochs"
        if not end:
            raise UsageError(
                f"{type(self).__name__} by {unit} needs the runner's max_{unit}; "
                f"give it, or by_epoch={not self.by_epoch}"
            )
        return min(done, end), end

    def _set(self, runner: BaseRunner) -> None:
        done, factor = runner.iter, 1.0
        if self.warmup is not None and done < self.warmup_iters:
            factor = 1 - (1 - done / self.warmup_iters) * (1 - self.warmup_ratio)
        for group in runner.optimizer.param_groups:
            group["lr"] = factor * self.get_lr(runner, group["initial_lr"])


@dataclass(eq=False)
class StepLrHook(LrHook):
    """Multiplies the rate by ``gamma`` at each step; see `LrHook` for the other arguments.

    Args:
        step: An interval, or the epochs (iterations) of the steps.
        gamma: The factor.
        min_lr: The rate does not fall below it.
    """

    step: int | Sequence[int]
    gamma: float = 0.1
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = [self.step] if isinstance(self.step, int) else list(self.step)
        if not steps or not all(is_count(step) for step in steps):
            raise UsageError(f"step must be a whole number from 1 up, or several, not {self.step}")

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate after the steps that are past."""
        done, step = runner.epoch if self.by_epoch else runner.iter, self.step
        past = done // step if isinstance(step, int) else sum(done >= each for each in step)
        return max(base_lr * self.gamma**past, self.min_lr)


@dataclass(eq=False)
class CosineLrHook(LrHook):
    """Lowers the rate along half a cosine; see `LrHook` for the other arguments.

    Args:
        min_lr: The last rate.
    """

    min_lr: float = 0.0

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate on the cosine."""
        done, end = self.progress(runner)
        return self.min_lr + (base_lr - self.min_lr) * (1 + math.cos(math.pi * done / end)) / 2
