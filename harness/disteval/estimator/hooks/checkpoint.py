"""The hook that writes checkpoints and keeps the last few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from disteval.arguments import check_count, is_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import Checkpoints
from disteval.estimator.hooks.best import Best
from disteval.estimator.hooks.hook import Hook
from disteval.evaluation.agreement import on_rank_0

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


@dataclass(eq=False)
class CheckpointHook(Hook):
    """Writes a checkpoint to ``work_dir`` every few epochs or iterations, and at the end.

    Rank 0 writes, and all ranks continue when the file is complete; older ones are deleted then.

    Args:
        interval: The epochs or iterations between two checkpoints.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        max_keep_ckpts: How many of this training's last to keep, from 1 up; -1 for all. Those of
            other trainings stay.
        keep_best: How many of the best to keep as well, by a validation after the same iteration.
        monitor: The entry of validation's records that says which are best, such as ``accuracy``.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
    """

    interval: int = 1
    by_epoch: bool = True
    max_keep_ckpts: int = -1
    keep_best: int = 0
    monitor: str | None = None
    rule: str | None = None
    writes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("CheckpointHook: interval", self.interval)
        if self.max_keep_ckpts != -1 and not is_count(self.max_keep_ckpts):
            raise UsageError(
                f"max_keep_ckpts must be a whole number from 1 up, or -1 for all, not "
                f"{self.max_keep_ckpts}"
            )
        check_count("keep_best", self.keep_best, 0)
        if (self.keep_best > 0) != (self.monitor is not None):
            raise UsageError(
                f"keep_best={self.keep_best} with monitor={self.monitor!r}: give both, the number "
                f"of the best checkpoints and the entry of the record that says which are best"
            )
        self._best = Best("monitor", self.monitor, self.rule) if self.monitor else None
        self._begin = self._saved = -1  # iterations, at the beginning and of the last checkpoint
        self._judged = (-1, math.nan)  # iteration and value of the last validation

    def before_run(self, runner: BaseRunner) -> None:
        """Warn of checkpoints that this training wrote later, before it went back."""
        self._begin = self._saved = runner.iter
        entries = on_rank_0(runner.backend, _checkpoints(runner).entries, "read the checkpoints")
        later = [e.name for e in entries if e.training == runner.training and e.iter > runner.iter]
        if later and runner.rank == 0:
            runner.logger.warning(
                "%s has later checkpoints of this training, up to %s; they stay until others take "
                "their names, and the newest of the folder is one of them until then",
                runner.work_dir, later[-1],
            )  # fmt: skip

    def after_train_epoch(self, runner: BaseRunner) -> None:
        """Write a checkpoint, if it is due."""
        due = self.every_n_epochs(runner, self.interval) or self.is_last_epoch(runner)
        if self.by_epoch and due:
            self._write(runner)

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Write a checkpoint, if it is due."""
        due = self.every_n_iters(runner, self.interval) or self.is_last_iter(runner)
        if not self.by_epoch and due:
            self._write(runner)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Note how good the weights are."""
        if self._best is not None and record["mode"] == "val":
            self._judged = (record["iter"], self._best.value_of(record))
            self._keep(runner)

    def after_run(self, runner: BaseRunner) -> None:
        """Save the last state also if training was stopped early."""
        if runner.stopped and self._saved < runner.iter:
            self._write(runner)
        if self._best is not None and self._saved > self._begin:
            self._best.require()

    def _write(self, runner: BaseRunner) -> None:
        assert runner.work_dir is not None
        epoch, self._saved = runner.trained()
        name = f"epoch_{epoch}.pt" if self.by_epoch else f"iter_{self._saved}.pt"
        runner.save_checkpoint(runner.work_dir, name)
        self._keep(runner)

    def _keep(self, runner: BaseRunner) -> None:
        """Enter the last validation's value, and delete the checkpoints that are too many."""
        folder, sign = _checkpoints(runner), 1 if self._best is None else self._best.sign

        def keep() -> None:
            folder.rate(runner.training, *self._judged)
            if self.max_keep_ckpts > 0:  # of those that a resume has not left behind
                best = sign * self.keep_best
                folder.keep(runner.training, self._saved, self.max_keep_ckpts, best)

        on_rank_0(runner.backend, keep, "delete older checkpoints")


def _checkpoints(runner: BaseRunner) -> Checkpoints:
    assert runner.work_dir is not None
    return Checkpoints(runner.work_dir)
