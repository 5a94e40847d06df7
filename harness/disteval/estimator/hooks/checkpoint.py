"""The hooks that keep checkpoints and the best weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from disteval.arguments import check_count, is_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import (
    BEST_WEIGHTS,
    UNCHANGED,
    Checkpoints,
    weights_of,
    write_safetensors,
)
from disteval.estimator.hooks.hook import Hook
from disteval.evaluation.agreement import on_rank_0

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

_LESS = ("loss", "error", "entropy")
_GREATER = "(?<![a-z])(acc|auroc|correct|precision|top)"  # not "incorrect"


class BestWeightsHook(Hook):
    """Keeps the weights of the best validation in ``best.safetensors`` in ``work_dir``.

    The file has the model's own names, and is written whole or not at all. Training without a
    validation is refused.

    Args:
        monitor: The entry of validation's records that says which are best, such as ``accuracy``.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
    """

    writes = True

    def __init__(self, monitor: str, rule: str | None = None) -> None:
        if rule is None:  # the name of the entry may tell
            if any(word in monitor for word in _LESS):
                rule = "less"
            elif re.search(_GREATER, monitor):
                rule = "greater"
        if rule not in ("greater", "less"):
            raise UsageError(f"rule={rule!r} for monitor={monitor!r}: give 'greater' or 'less'")
        self.monitor, self._sign = monitor, 1 if rule == "greater" else -1
        self._best: float | None = None
        self._seen = False

    def before_run(self, runner: BaseRunner) -> None:
        """Note where training begins."""
        self._begin = runner.iter

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Keep the weights if they are the best so far."""
        if record["mode"] != "val":
            return
        if self.monitor not in record:
            raise UsageError(
                f"monitor={self.monitor!r} is not in the record of {', '.join(record)}; give an "
                f"entry of it, or the metric to the runner; metrics need a val_step with scores "
                f"and labels"
            )
        self._seen = True
        value = float(record[self.monitor])
        if math.isnan(value):
            return
        if self._best is not None and self._sign * value <= self._sign * self._best:
            return
        self._best = value
        assert runner.work_dir is not None
        path = runner.work_dir / BEST_WEIGHTS
        names = ("epoch", "iter", "correct", "evaluated", self.monitor)
        facts = {key: repr(record[key]) for key in names if key in record}
        write = partial(write_safetensors, path, weights_of(runner.model), facts)
        on_rank_0(runner.backend, write, f"write {path}", UNCHANGED)

    def after_run(self, runner: BaseRunner) -> None:
        """Refuse a training without a validation."""
        if runner.iter > self._begin and not self._seen:
            raise UsageError(
                f"training has ended without a validation, which monitor={self.monitor!r} needs; "
                f"add ('val', 1) to the workflow"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the best value so far."""
        self._best = state["best"]


@dataclass(eq=False)
class CheckpointHook(Hook):
    """Writes a checkpoint to ``work_dir`` every few epochs or iterations, and at the end.

    Rank 0 writes, and all ranks continue when the file is complete; older ones are deleted then.

    Args:
        interval: The epochs or iterations between two checkpoints.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        max_keep_ckpts: How many of this training's last to keep, from 1 up; -1 for all. Those of
            other trainings stay.
    """

    interval: int = 1
    by_epoch: bool = True
    max_keep_ckpts: int = -1
    writes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("CheckpointHook: interval", self.interval)
        if self.max_keep_ckpts != -1 and not is_count(self.max_keep_ckpts):
            raise UsageError(
                f"max_keep_ckpts must be a whole number from 1 up, or -1 for all, not "
                f"{self.max_keep_ckpts}"
            )
        self._saved = -1  # the iteration of the last checkpoint, or of the beginning

    def before_run(self, runner: BaseRunner) -> None:
        """Warn of checkpoints that this training wrote later, before it went back."""
        self._saved = runner.iter
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

    def after_run(self, runner: BaseRunner) -> None:
        """Save the last state also if training was stopped early."""
        if runner.stopped and self._saved < runner.iter:
            self._write(runner)

    def _write(self, runner: BaseRunner) -> None:
        assert runner.work_dir is not None
        epoch, self._saved = runner.trained()
        name = f"epoch_{epoch}.pt" if self.by_epoch else f"iter_{self._saved}.pt"
        runner.save_checkpoint(runner.work_dir, name)
        if self.max_keep_ckpts > 0:  # of those that a resume has not left behind
            counts = (self._saved, self.max_keep_ckpts)
            keep = partial(_checkpoints(runner).keep, runner.training, *counts)
            on_rank_0(runner.backend, keep, "delete older checkpoints")


def _checkpoints(runner: BaseRunner) -> Checkpoints:
    assert runner.work_dir is not None
    return Checkpoints(runner.work_dir)
