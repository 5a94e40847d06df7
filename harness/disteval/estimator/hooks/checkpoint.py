"""The hook that writes checkpoints and keeps the last few."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_count, is_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import Checkpoints, check_template, on_rank_0
from disteval.estimator.hooks.best import Best
from disteval.estimator.hooks.hook import IntervalHook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


@dataclass(eq=False)
class CheckpointHook(IntervalHook):
    """Writes a checkpoint every few epochs or iterations.

    Rank 0 writes, and all ranks continue when the file is complete; older ones are deleted then.

    Args:
        interval: The epochs or iterations between two checkpoints.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        max_keep_ckpts: How many of this training's last to keep, from 1 up; -1 for all. Files of
            other names and of other trainings stay.
        keep_best: How many of the best to keep as well, by a validation after the same iteration.
        monitor: The entry of validation's records that says which are best, such as ``accuracy``.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
        save_last: Whether the last epoch (iteration) of a run is always saved.
        save_optimizer: Whether to include the optimizer's state, without which training that is
            resumed differs from training that was not interrupted.
        out_dir: The folder; None for the runner's ``work_dir``.
        filename_tmpl: A file name that ends in ``.pt`` or ``.pth``; ``{}`` stands for the number of
            epochs or iterations. None for ``epoch_{}.pt`` or ``iter_{}.pt``.
    """

    interval: int = 1
    by_epoch: bool = True
    max_keep_ckpts: int = -1
    save_last: bool = True
    save_optimizer: bool = True
    out_dir: str | Path | None = None
    filename_tmpl: str | None = None
    keep_best: int = 0
    monitor: str | None = None
    rule: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        self._at_end = self.save_last
        self._template = check_template(self.filename_tmpl, self.by_epoch)
        self._best = Best("monitor", self.monitor, self.rule) if self.monitor else None
        self._values: dict[str, float] = {}  # of the best checkpoints
        self._saved = (-1, "")  # iteration and name of the last checkpoint
        self._judged = (-1, math.nan)  # iteration and value of the last validation

    def before_run(self, runner: BaseRunner) -> None:
        """Find out where to write."""
        super().before_run(runner)
        self._begin = runner.iter
        if self._saved[0] != runner.iter:
            self._saved = (runner.iter, "")
        written = on_rank_0(runner.backend, lambda: self._written(runner), "read the checkpoints")
        later = [name for name, at in written if at > runner.iter]
        if later and runner.rank == 0:
            runner.logger.warning(
                "%s has later checkpoints of this training, up to %s; they stay until others take "
                "their names, and the newest of the folder is one of them until then",
                self.out_dir, later[-1],
            )  # fmt: skip

    def act(self, runner: BaseRunner) -> None:
        """Write a checkpoint, and delete those that are too many."""
        assert self.out_dir is not None
        epoch, iteration = runner.trained()
        name = self._template.format(epoch if self.by_epoch else iteration)
        self._saved = (iteration, name)
        self._values.pop(name, None)
        self._judge()
        runner.save_checkpoint(self.out_dir, name, self.save_optimizer)
        if runner.rank == 0 and self.max_keep_ckpts > 0:
            # Later ones were left behind by a resume from an earlier checkpoint.
            written = [name for name, at in self._written(runner) if at <= iteration]
            old = [name for name in written[: -self.max_keep_ckpts] if name not in self._values]
            Checkpoints(self.out_dir).remove(old)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Remember how good the weights are."""
        if self._best is not None and record["mode"] == "val":
            self._judged = (record["iter"], self._best.value_of(record))
            self._judge()

    def after_run(self, runner: BaseRunner) -> None:
        """Save the last state also if training was stopped early."""
        if runner.stopped and self.save_last and self._saved[0] < runner.iter:
            self.act(runner)
        if self._best is not None and self._saved[0] > self._begin:
            self._best.require()

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the best checkpoints, and the last one, whose value may follow."""
        return {"values": dict(self._values), "saved": self._saved} if self._best else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of `state_dict`."""
        self._values = dict(state.get("values", {}))
        self._saved = state.get("saved", (-1, ""))

    def _written(self, runner: BaseRunner) -> list[tuple[str, int]]:
        """Return names and iterations of this training's checkpoints, with the newest last."""
        before, _, after = self._template.partition("{}")
        ours = re.compile(rf"{re.escape(before)}\d+{re.escape(after)}")
        return [
            (entry.name, entry.iter)
            for entry in Checkpoints(self.out_dir or ".").entries()
            if entry.training == runner.training and ours.fullmatch(entry.name)
        ]

    def _judge(self) -> None:
        """Keep the last validation's value if it is one of the best of a checkpoint."""
        (judged, value), (saved, name) = self._judged, self._saved
        if self._best is None or not name or judged != saved or math.isnan(value):
            return
        self._values[name] = value
        sign = self._best.sign
        ordered = sorted(self._values.items(), key=lambda item: -sign * item[1])
        self._values = dict(ordered[: self.keep_best])
