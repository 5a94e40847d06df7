"""The hook that measures iterations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


class IterTimerHook(Hook):
    """Reports ``data_time``, the wait for a batch, and ``time``, the whole iteration, in seconds.

    They are this rank's, and appear in log lines, not in records.
    """

    def before_epoch(self, runner: BaseRunner) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()

    def before_iter(self, runner: BaseRunner) -> None:
        """The batch is there."""
        waited = time.perf_counter() - self._begin
        runner.log_buffer.update({"data_time": waited}, record=False)

    def after_iter(self, runner: BaseRunner) -> None:
        """The step is done."""
        now = time.perf_counter()
        runner.log_buffer.update({"time": now - self._begin}, record=False)
        self._begin = now
