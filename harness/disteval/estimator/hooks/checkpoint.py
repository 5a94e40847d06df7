"""The hook that writes checkpoints and keeps the last few."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from disteval.arguments import check_count, is_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import checkpoints
from disteval.estimator.context import Context
from disteval.estimator.hooks.hook import Hook


@dataclass(eq=False)
class CheckpointHook(Hook):
    """Writes a checkpoint every few epochs or iterations.

    Rank 0 writes, and all ranks continue when the file is complete; older ones are deleted then.

    Args:
        interval: The epochs or iterations between two checkpoints.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        max_keep_ckpts: How many to keep, from 1 up; -1 for all. Files of other names stay.
        save_last: Whether the last epoch (iteration) of a run is always saved.
        save_optimizer: Whether to include the optimizer's state, without which training that is
            resumed differs from training that was not interrupted.
        out_dir: The folder; None for the runner's ``work_dir``.
        filename_tmpl: ``{}`` stands for the number of epochs or iterations; None for
            ``epoch_{}.pt`` or ``iter_{}.pt``.

    Raises:
        UsageError: An argument is out of range.
    """

    interval: int = 1
    by_epoch: bool = True
    max_keep_ckpts: int = -1
    save_last: bool = True
    save_optimizer: bool = True
    out_dir: str | Path | None = None
    filename_tmpl: str | None = None

    def __post_init__(self) -> None:
        check_count("CheckpointHook: interval", self.interval)
        if self.max_keep_ckpts != -1 and not is_count(self.max_keep_ckpts):
            raise UsageError(
                f"max_keep_ckpts must be a whole number from 1 up, or -1 for all, not "
                f"{self.max_keep_ckpts}"
            )
        self._template = self.filename_tmpl or ("epoch_{}.pt" if self.by_epoch else "iter_{}.pt")

    def before_run(self, runner: Context) -> None:
        """Find out where to write."""
        self.out_dir = self.out_dir or runner.work_dir
        if self.out_dir is None:
            raise UsageError("CheckpointHook has no folder: give out_dir, or a work_dir")

    def after_train_epoch(self, runner: Context) -> None:
        """Save a checkpoint, if one is due."""
        if self.by_epoch and (
            self.every_n_epochs(runner, self.interval)
            or (self.save_last and self.is_last_epoch(runner))
        ):
            self._save(runner)

    def after_train_iter(self, runner: Context) -> None:
        """Save a checkpoint, if one is due."""
        if not self.by_epoch and (
            self.every_n_iters(runner, self.interval)
            or (self.save_last and self.is_last_iter(runner))
        ):
            self._save(runner)

    def _save(self, runner: Context) -> None:
        assert self.out_dir is not None
        epoch, iteration = runner.trained()
        name = self._template.format(epoch if self.by_epoch else iteration)
        runner.save_checkpoint(self.out_dir, name, self.save_optimizer)
        if runner.rank == 0 and self.max_keep_ckpts > 0:
            before, _, after = self._template.partition("{}")
            ours = re.compile(rf"{re.escape(before)}\d+{re.escape(after)}")
            written = [path for path in checkpoints(self.out_dir) if ours.fullmatch(path.name)]
            for path in written[: -self.max_keep_ckpts]:
                path.unlink()
