"""The hooks that keep checkpoints and the best weights, and that end training early."""

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


class Best:
    """The best value so far of an entry of validation's records, which an argument has named."""

    def __init__(self, argument: str, entry: str, rule: str | None) -> None:
        self._what = f"{argument}={entry!r}"
        self.entry = entry
        self.value: float | None = None
        self._seen = False
        if rule is None and any(word in entry for word in _LESS):
            rule = "less"
        elif rule is None and re.search(_GREATER, entry):
            rule = "greater"
        if rule not in ("greater", "less"):
            raise UsageError(f"rule={rule!r} for {self._what}: give 'greater' or 'less'")
        self.sign = 1 if rule == "greater" else -1

    def value_of(self, record: Mapping[str, Any]) -> float:
        """Return a record's value; UsageError if it has none."""
        if self.entry not in record:
            raise UsageError(
                f"{self._what} is not in the record of {', '.join(record)}; give an entry of it, "
                f"or the metric to the runner; metrics need a val_step with scores and labels"
            )
        self._seen = True
        return float(record[self.entry])

    def take(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record's value is the best, and keep it then."""
        value = self.value_of(record)
        better = self.value is None or self.sign * (value - self.value) > 0
        if better and not math.isnan(value):
            self.value = value
            return True
        return False

    def require(self) -> None:
        """Raise UsageError if no validation had a record."""
        if not self._seen:
            raise UsageError(
                f"training has ended without a validation, which {self._what} needs; add "
                f"('val', 1) to the workflow"
            )


@dataclass(eq=False)
class MonitorHook(Hook):
    """Looks at an entry of validation's records; training without a validation is refused."""

    monitor: str
    rule: str | None = None

    def __post_init__(self) -> None:
        self._best = Best("monitor", self.monitor, self.rule)

    def before_run(self, runner: BaseRunner) -> None:
        """Note where training begins."""
        self._begin = runner.iter

    def after_run(self, runner: BaseRunner) -> None:
        """Refuse a training without a validation."""
        if runner.iter > self._begin:
            self._best.require()

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self._best.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the best value so far."""
        self._best.value = state["best"]


class BestWeightsHook(MonitorHook):
    """Keeps the weights of the best validation in ``best.safetensors`` in ``work_dir``.

    The file has the model's own names, and is written whole or not at all.

    Args:
        monitor: The entry of validation's records that says which are best, such as ``accuracy``.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
    """

    writes = True

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Keep the weights if they are the best so far."""
        if record["mode"] != "val" or not self._best.take(record):
            return
        assert runner.work_dir is not None
        path = runner.work_dir / BEST_WEIGHTS
        names = ("epoch", "iter", "correct", "evaluated", self.monitor)
        facts = {key: repr(record[key]) for key in names if key in record}
        write = partial(write_safetensors, path, weights_of(runner.model), facts)
        on_rank_0(runner.backend, write, f"write {path}", UNCHANGED)


@dataclass(eq=False)
class EarlyStoppingHook(MonitorHook):
    """Ends training when an entry of validation's records has stopped getting better.

    The number of validations is kept in checkpoints, so a training that has ended early is not
    continued by a resume.

    Args:
        monitor: The entry, such as ``accuracy`` or ``loss``.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
        patience: The number of validations without a better value after which training ends.
    """

    patience: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("EarlyStoppingHook: patience", self.patience)
        self._waited, self._iter = 0, -1  # the iteration of the last validation that was counted

    def before_run(self, runner: BaseRunner) -> None:
        """Train no more if patience had an end before."""
        super().before_run(runner)
        self._decide(runner)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Count a validation, and stop if there were too many."""
        if record["mode"] == "val" and record["iter"] > self._iter:
            self._iter = record["iter"]
            self._waited = 0 if self._best.take(record) else self._waited + 1
            self._decide(runner)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the validations since then."""
        return {**super().state_dict(), "waited": self._waited, "iter": self._iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of `state_dict`."""
        super().load_state_dict(state)
        self._waited, self._iter = state["waited"], state["iter"]

    def _decide(self, runner: BaseRunner) -> None:
        if self._waited >= self.patience:
            best = self._best.value
            found = "was NaN" if best is None else f"was not better than {best}"
            runner.stop(f"{self.monitor} {found} in {self._waited} validations")


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
