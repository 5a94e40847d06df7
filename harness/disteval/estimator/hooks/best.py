"""The best value of an entry of records, and the hook that ends training when it stays away."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook

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

    def take(self, record: Mapping[str, Any], min_delta: float = 0.0) -> bool:
        """Return whether a record's value is the best by ``min_delta``, and keep it then."""
        value = self.value_of(record)
        better = self.value is None or self.sign * (value - self.value) > min_delta
        if better and not math.isnan(value):
            self.value = value
            return True
        return False

    def require(self) -> None:
        """Raise UsageError if no validation had a record."""
        if not self._seen:
            raise UsageError(
                f"training has ended without a validation, which {self._what} needs; add "
                f"('val', 1) to the workflow, or an EvalHook"
            )


@dataclass(eq=False)
class EarlyStoppingHook(Hook):
    """Ends training when an entry of validation's records has stopped getting better.

    Validations of a workflow and of an `EvalHook` count, one for each iteration of training. The
    count is kept in checkpoints, so a training that has ended early is not continued by a resume.

    Args:
        monitor: The entry, such as ``accuracy`` or ``loss``.
        patience: The number of validations without a better value after which training ends.
        min_delta: A value counts as better if it is better by more than this.
        rule: ``greater`` or ``less`` is better; None derives it from the entry's name.
    """

    monitor: str
    patience: int = 3
    min_delta: float = 0.0
    rule: str | None = None

    def __post_init__(self) -> None:
        check_count("EarlyStoppingHook: patience", self.patience)
        if not 0 <= self.min_delta < math.inf:
            raise UsageError(f"min_delta must be a number from 0 up, not {self.min_delta!r}")
        self._best = Best("monitor", self.monitor, self.rule)
        self._waited, self._iter = 0, -1

    def before_run(self, runner: BaseRunner) -> None:
        """Train no more if patience had an end before."""
        self._begin = runner.iter
        self._decide(runner)

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Count a validation, and stop if there were too many."""
        if record["mode"] == "val" and record["iter"] > self._iter:
            self._iter = record["iter"]
            self._waited = 0 if self._best.take(record, self.min_delta) else self._waited + 1
            self._decide(runner)

    def after_run(self, runner: BaseRunner) -> None:
        """Refuse a training without a validation."""
        if runner.iter > self._begin:
            self._best.require()

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the validations since then."""
        return {"best": self._best.value, "waited": self._waited, "iter": self._iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of `state_dict`."""
        self._best.value, self._waited, self._iter = state["best"], state["waited"], state["iter"]

    def _decide(self, runner: BaseRunner) -> None:
        if self._waited >= self.patience:
            best = self._best.value
            found = "was NaN" if best is None else f"was not better than {best}"
            runner.stop(f"{self.monitor} {found} in {self._waited} validations")
