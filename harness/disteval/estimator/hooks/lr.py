"""Learning rates by schedule, each a function of how far training has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_choice
from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

WARMUPS = ("constant", "linear", "exp")


class LrHook(Hook):
    """Sets each parameter group's learning rate before each epoch or iteration.

    A schedule keeps no state: a rate follows from the group's first rate, which the optimizer
    keeps as ``initial_lr``, and from the runner's epoch or iteration. A subclass gives `get_lr`.

    Args:
        by_epoch: Whether the schedule counts epochs or iterations.
        warmup: How the rate rises at first: ``constant`` at the ratio, ``linear`` from it, or
            ``exp``; None for not at all.
        warmup_iters: Iterations that it takes, or epochs where ``warmup_by_epoch``.
        warmup_ratio: Above 0, up to 1: what the schedule's rate is multiplied by at the start.
        warmup_by_epoch: What ``warmup_iters`` counts.

    Raises:
        UsageError: ``warmup`` is not known, or its figures can't be.
    """

    def __init__(
        self,
        by_epoch: bool = True,
        warmup: str | None = None,
        warmup_iters: int = 0,
        warmup_ratio: float = 0.1,
        warmup_by_epoch: bool = False,
    ) -> None:
        if warmup is not None:
            check_choice("warmup", warmup, WARMUPS)
            if warmup_iters < 1 or not 0 < warmup_ratio <= 1:
                raise UsageError(
                    f"warmup needs warmup_iters from 1 up and warmup_ratio above 0 up to 1, not "
                    f"{warmup_iters} and {warmup_ratio}"
                )
        self.by_epoch = by_epoch
        self.warmup = warmup
        self.warmup_iters = warmup_iters
        self.warmup_ratio = warmup_ratio
        self.warmup_by_epoch = warmup_by_epoch

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate for now, given a group's first rate."""
        raise NotImplementedError

    def before_run(self, runner: BaseRunner) -> None:
        """Keep every group's first rate."""
        if not runner.optimizers():
            raise UsageError(f"{type(self).__name__} needs a runner with an optimizer")
        for group in _groups(runner):
            group.setdefault("initial_lr", group["lr"])

    def before_train_epoch(self, runner: BaseRunner) -> None:
        """Set the rates of an epoch."""
        self._set(runner)

    def before_train_iter(self, runner: BaseRunner) -> None:
        """Set the rates of an iteration."""
        if not self.by_epoch or self.warmup is not None:
            self._set(runner)

    def progress(self, runner: BaseRunner) -> tuple[int, int]:
        """Return how far training has come and how far it goes, in epochs or iterations.

        Raises:
            UsageError: The runner does not know how far it goes.
        """
        done, end, unit = (
            (runner.epoch, runner.max_epochs, "epochs")
            if self.by_epoch
            else (runner.iter, runner.max_iters, "iters")
        )
        if not end:
            raise UsageError(
                f"{type(self).__name__} by {unit} needs the runner's max_{unit}; "
                f"give it, or by_epoch={not self.by_epoch}"
            )
        return min(done, end), end

    def _set(self, runner: BaseRunner) -> None:
        factor = self._warmup_factor(runner.epoch if self.warmup_by_epoch else runner.iter)
        for group in _groups(runner):
            group["lr"] = factor * self.get_lr(runner, group["initial_lr"])

    def _warmup_factor(self, done: int) -> float:
        if self.warmup is None or done >= self.warmup_iters:
            return 1.0
        left = 1 - done / self.warmup_iters
        if self.warmup == "constant":
            return self.warmup_ratio
        if self.warmup == "linear":
            return 1 - left * (1 - self.warmup_ratio)
        return float(self.warmup_ratio**left)


class FixedLrHook(LrHook):
    """The first rate throughout, but for a warm-up."""

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the first rate."""
        return base_lr


class StepLrHook(LrHook):
    """Multiplies the rate by ``gamma`` at each step.

    Args:
        step: An interval, or the epochs (iterations) at which a step is due.
        gamma: The factor.
        min_lr: The rate does not fall below it.
        **options: See `LrHook`.

    Raises:
        UsageError: ``step`` is neither.
    """

    def __init__(
        self,
        step: int | Sequence[int],
        gamma: float = 0.1,
        min_lr: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        steps = [step] if isinstance(step, int) else list(step)
        if not steps or not all(isinstance(s, int) and s > 0 for s in steps):
            raise UsageError(f"step must be an integer from 1 up, or several, not {step!r}")
        self.step = step
        self.gamma = gamma
        self.min_lr = min_lr

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate after the steps that are past."""
        done = runner.epoch if self.by_epoch else runner.iter
        if isinstance(self.step, int):
            past = done // self.step
        else:
            past = sum(done >= step for step in self.step)
        return max(base_lr * self.gamma**past, self.min_lr)


class CosineLrHook(LrHook):
    """Falls along half a cosine, from the first rate to the last.

    Args:
        min_lr: The last rate.
        min_lr_ratio: The last rate as a part of the first, instead of ``min_lr``.
        **options: See `LrHook`.
    """

    def __init__(
        self, min_lr: float = 0.0, min_lr_ratio: float | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.min_lr = min_lr
        self.min_lr_ratio = min_lr_ratio

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate on the cosine."""
        done, end = self.progress(runner)
        last = self.min_lr if self.min_lr_ratio is None else base_lr * self.min_lr_ratio
        return last + (base_lr - last) * (1 + math.cos(math.pi * done / end)) / 2


class PolyLrHook(LrHook):
    """Falls as a power of what is left.

    Args:
        power: 1 is a straight line.
        min_lr: The last rate.
        **options: See `LrHook`.
    """

    def __init__(self, power: float = 1.0, min_lr: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.power = power
        self.min_lr = min_lr

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate on the curve."""
        done, end = self.progress(runner)
        return float((base_lr - self.min_lr) * (1 - done / end) ** self.power + self.min_lr)


def _groups(runner: BaseRunner) -> list[dict[str, Any]]:
    return [group for each in runner.optimizers().values() for group in each.param_groups]
