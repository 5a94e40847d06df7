"""The hook that evaluates during training, and keeps the best weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.estimator.checkpoint import (
    BEST_WEIGHTS,
    on_rank_0,
    weights_of,
    write_safetensors,
)
from disteval.estimator.hooks.best import Best
from disteval.estimator.hooks.hook import IntervalHook
from disteval.estimator.loaders import whole
from disteval.estimator.validation import validate
from disteval.metrics import BaseMetric

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


@dataclass(eq=False)
class EvalHook(IntervalHook):
    """Evaluates every few epochs or iterations, exactly, and publishes the record.

    The record has ``mode`` ``val``, as that of a validation phase. With ``save_best`` the best
    weights so far are kept in ``best.safetensors`` under the model's own names, written atomically.

    Args:
        dataloader: A ``DataLoader`` over the whole data set, the same on every rank.
        interval: The epochs or iterations between two evaluations.
        by_epoch: Whether ``interval`` counts epochs, or else iterations.
        metrics: Metrics by name, from `disteval.metrics`; None stands for those of the runner.
        save_best: The entry of the record that decides which weights are best. With None no
            weights are kept.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
        out_dir: The folder for the best weights; None for the runner's ``work_dir``.
    """

    dataloader: Any
    metrics: Mapping[str, BaseMetric] | None = None
    save_best: str | None = None
    rule: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._writes = self.save_best is not None
        self._best = None
        if self.save_best is not None:
            self._best = Best("save_best", self.save_best, self.rule)

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return None if self._best is None else self._best.value

    def before_run(self, runner: BaseRunner) -> None:
        """Find out where to write, and refuse a loader that chooses some of the samples."""
        super().before_run(runner)
        whole(self.dataloader)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the best value so far."""
        if self._best is not None:
            self._best.value = state["best"]

    def act(self, runner: BaseRunner) -> None:
        """Evaluate, and keep the weights if they are the best so far."""
        record = validate(runner, self.dataloader, self.metrics)
        runner.publish(record)
        if self._best is None or not self._best.take(record):
            return
        assert self.out_dir is not None
        path = Path(self.out_dir) / BEST_WEIGHTS
        names = ("epoch", "iter", "correct", "evaluated", self._best.entry)
        facts = {key: repr(record[key]) for key in names if key in record}
        weights = weights_of(runner.model)
        on_rank_0(runner.backend, lambda: write_safetensors(path, weights, facts), f"write {path}")
