"""The hook that writes checkpoints and keeps the last few."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import checkpoints
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


class CheckpointHook(Hook):
    """Writes a checkpoint every few epochs or iterations.

    Rank 0 writes, atomically; all ranks go on when the file is complete, and only then are older
    ones deleted.

    Args:
        interval: Epochs or iterations between two.
        by_epoch: Which of them.
        max_keep_ckpts: How many to keep, from 1 up; -1 for all. Files of other names stay.
        save_last: Whether the last epoch (iteration) of a run is saved whatever the interval.
        save_optimizer: Whether to keep the optimizer's state, without which training goes on as
            another.
        out_dir: Where to; None for the runner's ``work_dir``.
        filename_tmpl: ``{}`` stands for the number of epochs or iterations; None for the runner's
            own, ``epoch_{}.pt`` or ``iter_{}.pt``.

    Raises:
        UsageError: An argument can't be.
    """

    def __init__(
        self,
        interval: int = 1,
        by_epoch: bool = True,
        max_keep_ckpts: int = -1,
        save_last: bool = True,
        save_optimizer: bool = True,
        out_dir: str | Path | None = None,
        filename_tmpl: str | None = None,
    ) -> None:
        self.interval = check_count("CheckpointHook: interval", interval)
        if max_keep_ckpts != -1 and max_keep_ckpts < 1:
            raise UsageError(
                f"max_keep_ckpts must be an integer from 1 up, or -1 for all, not {max_keep_ckpts}"
            )
        self.by_epoch = by_epoch
        self.max_keep_ckpts = max_keep_ckpts
        self.save_last = save_last
        self.save_optimizer = save_optimizer
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.filename_tmpl = filename_tmpl or ("epoch_{}.pt" if by_epoch else "iter_{}.pt")

    def before_run(self, runner: BaseRunner) -> None:
        """Find out where to write."""
        self.out_dir = self.out_dir or runner.work_dir
        if self.out_dir is None:
            raise UsageError("CheckpointHook has nowhere to write: give out_dir, or a work_dir")

    def after_train_epoch(self, runner: BaseRunner) -> None:
        """Save, if it is due."""
        if self.by_epoch and (
            self.every_n_epochs(runner, self.interval)
            or (self.save_last and self.is_last_epoch(runner))
        ):
            self._save(runner)

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Save, if it is due."""
        if not self.by_epoch and (
            self.every_n_iters(runner, self.interval)
            or (self.save_last and self.is_last_iter(runner))
        ):
            self._save(runner)

    def _save(self, runner: BaseRunner) -> None:
        assert self.out_dir is not None
        epoch, iteration = runner.trained()
        name = self.filename_tmpl.format(epoch if self.by_epoch else iteration)
        runner.save_checkpoint(self.out_dir, name, self.save_optimizer)
        if runner.rank == 0 and self.max_keep_ckpts > 0:
            before, _, after = self.filename_tmpl.partition("{}")
            ours = re.compile(rf"{re.escape(before)}\d+{re.escape(after)}")
            written = [path for path in checkpoints(self.out_dir) if ours.fullmatch(path.name)]
            for path in written[: -self.max_keep_ckpts]:
                path.unlink()
