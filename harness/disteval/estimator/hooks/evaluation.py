"""The hook that evaluates during training, and keeps the best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import (
    BEST_WEIGHTS,
    weights_of,
    write_on_rank_0,
    write_safetensors,
)
from disteval.estimator.context import Context
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.loaders import check_exact
from disteval.estimator.validation import validate
from disteval.metrics import BaseMetric

_LESS = ("loss", "error", "entropy")
_GREATER = ("accuracy", "top", "precision", "auroc", "correct", "acc")


@dataclass(eq=False)
class EvalHook(Hook):
    """Evaluates every few epochs or iterations, exactly, and publishes the record.

    The record has ``mode`` ``val``, as that of a validation phase. With ``save_best`` the best
    weights so far are kept in ``best.safetensors`` under the model's own names, written atomically.

    Args:
        dataloader: This rank's share of the data, for whose batches ``val_step`` returns scores and
            labels; shares may differ in size, and must not repeat each other's samples.
        interval: The epochs or iterations between two evaluations.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        metrics: Metrics by name, from `disteval.metrics`; None stands for accuracy. A metric whose
            result has several entries is recorded as ``{name}_{entry}``.
        save_best: The entry of the record that decides which weights are best. With None no
            weights are kept.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
        out_dir: The folder for the best weights; None for the runner's ``work_dir``.

    Raises:
        UsageError: An argument can't work.

    Attributes:
        best: The best value so far.
    """

    dataloader: Any
    interval: int = 1
    by_epoch: bool = True
    metrics: Mapping[str, BaseMetric] | None = None
    save_best: str | None = None
    rule: str | None = None
    out_dir: str | Path | None = None
    best: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_count("EvalHook: interval", self.interval)
        if self.save_best is not None:
            self.rule = _rule(self.save_best, self.rule)

    def before_run(self, runner: Context) -> None:
        """Find out where to write, and refuse a loader that counts samples twice."""
        self.out_dir = self.out_dir or runner.work_dir
        if self.save_best is not None and self.out_dir is None:
            raise UsageError("EvalHook can't save the best weights: give out_dir, or a work_dir")
        check_exact(self.dataloader)

    def after_train_epoch(self, runner: Context) -> None:
        """Evaluate, if it is due."""
        if self.by_epoch and self.every_n_epochs(runner, self.interval):
            self._evaluate(runner)

    def after_train_iter(self, runner: Context) -> None:
        """Evaluate, if it is due."""
        if not self.by_epoch and self.every_n_iters(runner, self.interval):
            self._evaluate(runner)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the best value so far."""
        self.best = state["best"]

    def _evaluate(self, runner: Context) -> None:
        record = validate(runner, self.dataloader, self.metrics)
        runner.publish(record)
        if self.save_best is None:
            return
        if self.save_best not in record:
            raise UsageError(
                f"save_best={self.save_best!r} is not in the record of {', '.join(record)}; "
                f"accuracy needs a val_step that returns scores and labels"
            )
        value = float(record[self.save_best])
        if math.isnan(value) or not (self.best is None or self._is_better(value, self.best)):
            return
        self.best = value
        assert self.out_dir is not None
        path = Path(self.out_dir) / BEST_WEIGHTS
        names = ("epoch", "iter", "correct", "evaluated")
        facts = {key: str(record[key]) for key in names if key in record}
        facts[self.save_best] = repr(record[self.save_best])
        write_on_rank_0(
            runner.backend, path, lambda: write_safetensors(path, weights_of(runner.model), facts)
        )

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.rule == "greater" else value < best


def _rule(name: str, rule: str | None) -> str:
    if rule in ("greater", "less"):
        return str(rule)
    if rule is None and any(word in name for word in _LESS):
        return "less"
    if rule is None and any(word in name for word in _GREATER):
        return "greater"
    raise UsageError(f"rule={rule!r} for save_best={name!r}: give 'greater' or 'less'")
