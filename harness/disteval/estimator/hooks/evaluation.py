"""The hook that evaluates during training, and keeps the best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.checkpoint import (
    BEST_WEIGHTS,
    weights_of,
    write_on_rank_0,
    write_safetensors,
)
from disteval.estimator.feed import surplus
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.validation import validate
from disteval.metrics import BaseMetric

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

_LESS = ("loss", "error", "entropy")
_GREATER = ("accuracy", "top", "precision", "auroc", "correct", "acc")


class EvalHook(Hook):
    """Evaluates every few epochs or iterations, exactly, and publishes the record.

    The record has ``mode`` ``val``, as that of a validation phase. With ``save_best`` the best
    weights so far are kept in ``best.safetensors`` under the model's own names, written atomically.

    Args:
        dataloader: This rank's share of the data, which its ``val_step`` gives scores and labels
            of; shares may differ in size, and none may repeat another's samples.
        interval: Epochs or iterations between two.
        by_epoch: Which of them.
        metrics: Metrics by name, from `disteval.metrics`; None stands for accuracy. A metric whose
            result has several entries is recorded as ``{name}_{entry}``.
        save_best: The entry of the record that says which weights are best; None keeps none.
        rule: ``greater`` or ``less`` is better; None tells from the entry's name.
        out_dir: Where the best weights go; None for the runner's ``work_dir``.

    Raises:
        UsageError: An argument can't be.

    Attributes:
        best: The best value so far.
    """

    def __init__(
        self,
        dataloader: Any,
        interval: int = 1,
        by_epoch: bool = True,
        metrics: Mapping[str, BaseMetric] | None = None,
        save_best: str | None = None,
        rule: str | None = None,
        out_dir: str | Path | None = None,
    ) -> None:
        self.dataloader = dataloader
        self.interval = check_count("EvalHook: interval", interval)
        self.by_epoch = by_epoch
        self.metrics = metrics
        self.save_best = save_best
        self.rule = None if save_best is None else _rule(save_best, rule)
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.best: float | None = None

    def before_run(self, runner: BaseRunner) -> None:
        """Find out where to write, and refuse a loader that counts samples twice."""
        self.out_dir = self.out_dir or runner.work_dir
        if self.save_best is not None and self.out_dir is None:
            raise UsageError("EvalHook can't save the best weights: give out_dir, or a work_dir")
        check_exact(self.dataloader)

    def after_train_epoch(self, runner: BaseRunner) -> None:
        """Evaluate, if it is due."""
        if self.by_epoch and self.every_n_epochs(runner, self.interval):
            self._evaluate(runner)

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Evaluate, if it is due."""
        if not self.by_epoch and self.every_n_iters(runner, self.interval):
            self._evaluate(runner)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the best value so far."""
        self.best = state["best"]

    def _evaluate(self, runner: BaseRunner) -> None:
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
        path = self.out_dir / BEST_WEIGHTS
        told = {key: str(record[key]) for key in ("epoch", "iter", "correct", "evaluated")
                if key in record} | {self.save_best: repr(record[self.save_best])}  # fmt: skip
        write_on_rank_0(
            runner.backend, path, lambda: write_safetensors(path, weights_of(runner.model), told)
        )

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.rule == "greater" else value < best


def check_exact(loader: Any) -> None:
    """Refuse a validation loader whose sampler deals equally many samples to each rank.

    Raises:
        UsageError: It counts samples twice for that, or leaves some out.
    """
    more = surplus(loader)
    if more:
        what = f"counts {more} samples twice" if more > 0 else f"leaves out {-more} samples"
        raise UsageError(
            f"the validation loader's DistributedSampler {what}; for each once, use "
            f"sampler=ShardPlan(size, world_size, rank, pad=False).indices"
        )


def _rule(name: str, rule: str | None) -> str:
    if rule in ("greater", "less"):
        return str(rule)
    if rule is None and any(word in name for word in _LESS):
        return "less"
    if rule is None and any(word in name for word in _GREATER):
        return "greater"
    raise UsageError(f"rule={rule!r} for save_best={name!r}: give 'greater' or 'less'")
