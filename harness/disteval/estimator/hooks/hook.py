"""The stages of a run, to which hooks attach, and the order in which hooks are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    """Does something at stages of a run; a subclass overrides those it needs.

    The stages of training and validation fall through to `before_epoch`, `after_epoch`,
    `before_iter` and `after_iter`. During the stages of an iteration and of an epoch,
    ``runner.iter`` and ``runner.epoch`` do not count it yet.

    Attributes:
        priority: Where the runner placed it.
    """

    priority: int = PRIORITIES["NORMAL"]

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
        """An iteration has ended; ``runner.outputs`` is what the model's step returned."""

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
        """A training step was run; the optimizer's hook goes backward here."""
        self.after_iter(runner)

    def before_val_epoch(self, runner: BaseRunner) -> None:
        """A validation begins."""
        self.before_epoch(runner)

    def after_val_epoch(self, runner: BaseRunner) -> None:
        """A validation has ended, and its record is there."""
        self.after_epoch(runner)

    def before_val_iter(self, runner: BaseRunner) -> None:
        """A validation step follows."""
        self.before_iter(runner)

    def after_val_iter(self, runner: BaseRunner) -> None:
        """A validation step was run."""
        self.after_iter(runner)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """A record was made; it is the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep of this hook: plain containers and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""

    def every_n_epochs(self, runner: BaseRunner, n: int) -> bool:
        """Whether the current epoch completes another ``n``; never for ``n`` below 1."""
        return n > 0 and (runner.epoch + 1) % n == 0

    def every_n_iters(self, runner: BaseRunner, n: int) -> bool:
        """Whether the current iteration completes another ``n``; never for ``n`` below 1."""
        return n > 0 and (runner.iter + 1) % n == 0

    def every_n_inner_iters(self, runner: BaseRunner, n: int) -> bool:
        """Whether the current iteration completes another ``n`` of its pass over a loader."""
        return n > 0 and (runner.inner_iter + 1) % n == 0

    def end_of_epoch(self, runner: BaseRunner) -> bool:
        """Whether the current iteration is the last of its pass over the loader."""
        return runner.inner_iter + 1 == len(runner.data_loader)

    def is_last_epoch(self, runner: BaseRunner) -> bool:
        """Whether the current epoch is the last of the run."""
        return runner.epoch + 1 == runner.max_epochs

    def is_last_iter(self, runner: BaseRunner) -> bool:
        """Whether the current iteration is the last of the run's training."""
        return runner.iter + 1 == runner.max_iters


def priority_of(priority: str | int) -> int:
    """Return a priority's number.

    Raises:
        UsageError: It is neither a name of `PRIORITIES` nor an integer from 0 to 100.
    """
    if isinstance(priority, str) and priority.upper() in PRIORITIES:
        return PRIORITIES[priority.upper()]
    if is_count(priority, 0, 100):
        return int(priority)
    raise UsageError(
        f"priority {priority!r} is not known; give an integer from 0 to 100 or one of "
        f"{', '.join(PRIORITIES)}"
    )
