"""The stages of a run, at which hooks are called, and the order in which they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from disteval.arguments import is_count
from disteval.errors import UsageError

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

PRIORITIES = {
    "HIGHEST": 0,
    "VERY_HIGH": 10,
    "HIGH": 30,
    "ABOVE_NORMAL": 40,
    "NORMAL": 50,
    "BELOW_NORMAL": 60,
    "LOW": 70,
    "VERY_LOW": 90,
    "LOWEST": 100,
}
"""Hooks are called in rising order of these; those of one priority as they were registered."""


class Hook:
    """Acts at stages of a run; a subclass overrides the stages that it needs.

    Every stage gets the runner; `disteval.estimator.runner.BaseRunner` has the attributes and
    methods that a hook may use. The stages of training and validation call `before_epoch`,
    `after_epoch`, `before_iter` and `after_iter` unless they are overridden. During the stages of
    an iteration or an epoch, ``runner.iter`` and ``runner.epoch`` do not count it yet.

    Attributes:
        priority: The hook's place in the order, which the runner sets.
        writes: Whether the hook can't work without the runner's ``work_dir``.
    """

    priority: int = PRIORITIES["NORMAL"]
    writes: ClassVar[bool] = False

    def before_run(self, runner: BaseRunner) -> None:
        """A run begins."""

    def after_run(self, runner: BaseRunner) -> None:
        """A run has ended."""

    def before_epoch(self, runner: BaseRunner) -> None:
        """An epoch of training or validation begins."""

    def after_epoch(self, runner: BaseRunner) -> None:
        """An epoch of training or validation has ended."""

    def before_iter(self, runner: BaseRunner) -> None:
        """An iteration of training or validation begins; ``runner.data_batch`` is its batch."""

    def after_iter(self, runner: BaseRunner) -> None:
        """An iteration has ended; ``runner.outputs`` is the result of the model's step."""

    def before_train_epoch(self, runner: BaseRunner) -> None:
        """A pass over the training data begins."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: BaseRunner) -> None:
        """A pass over the training data has ended."""
        self.after_epoch(runner)

    def before_train_iter(self, runner: BaseRunner) -> None:
        """A training step follows."""
        self.before_iter(runner)

    def after_train_iter(self, runner: BaseRunner) -> None:
        """A training step was run; the optimizer's hook runs the backward pass here."""
        self.after_iter(runner)

    def before_val_epoch(self, runner: BaseRunner) -> None:
        """A validation begins."""
        self.before_epoch(runner)

    def after_val_epoch(self, runner: BaseRunner) -> None:
        """A validation has ended, and its record is there."""
        self.after_epoch(runner)

    def before_val_iter(self, runner: BaseRunner) -> None:
        """A validation step was run, and its batch is counted next."""
        self.before_iter(runner)

    def after_val_iter(self, runner: BaseRunner) -> None:
        """The batch of a validation step was counted."""
        self.after_iter(runner)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """A record was made; it is the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return the hook's state for checkpoints: plain containers and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of `state_dict`."""

    def every_n_epochs(self, runner: BaseRunner, n: int) -> bool:
        """Return whether the current epoch completes another ``n``; never for ``n`` below 1."""
        return n > 0 and (runner.epoch + 1) % n == 0

    def every_n_iters(self, runner: BaseRunner, n: int) -> bool:
        """Return whether the current iteration completes another ``n``; never for ``n`` below 1."""
        return n > 0 and (runner.iter + 1) % n == 0

    def every_n_inner_iters(self, runner: BaseRunner, n: int) -> bool:
        """Return whether the current iteration completes another ``n`` of its pass."""
        return n > 0 and (runner.inner_iter + 1) % n == 0

    def end_of_epoch(self, runner: BaseRunner) -> bool:
        """Return whether the current iteration is the last of its pass over the loader."""
        return runner.inner_iter + 1 == len(runner.data_loader)

    def is_last_epoch(self, runner: BaseRunner) -> bool:
        """Return whether the current epoch is the last of the run."""
        return runner.stopped is not None or runner.epoch + 1 == runner.max_epochs

    def is_last_iter(self, runner: BaseRunner) -> bool:
        """Return whether the current iteration is the last of the run's training."""
        return runner.stopped is not None or runner.iter + 1 == runner.max_iters


def priority_of(priority: str | int) -> int:
    """Return a priority's number; UsageError if it is not known."""
    if isinstance(priority, str) and priority.upper() in PRIORITIES:
        return PRIORITIES[priority.upper()]
    if is_count(priority, 0, 100):
        return int(priority)
    raise UsageError(
        f"priority {priority!r} is not known; give an integer from 0 to 100 or one of "
        f"{', '.join(PRIORITIES)}"
    )
