"""The hooks that shuffle samplers anew in each epoch, and that measure iterations."""

from __future__ import annotations

import time

from disteval.estimator.context import Context
from disteval.estimator.feed import sampler_with_epoch
from disteval.estimator.hooks.hook import Hook


class DistSamplerSeedHook(Hook):
    """Calls ``set_epoch`` of the training loader's sampler; without it, all epochs are alike.

    The sampler is the loader's ``sampler``, its ``batch_sampler``, or the latter's ``sampler``:
    the first that has ``set_epoch``.
    """

    def before_train_epoch(self, runner: Context) -> None:
        """Call ``set_epoch``, if there is one."""
        sampler = sampler_with_epoch(runner.data_loader)
        if sampler is not None:
            sampler.set_epoch(runner.epoch)


class IterTimerHook(Hook):
    """Reports ``data_time``, the wait for a batch, and ``time``, the whole iteration, in seconds.

    They are this rank's, and appear in log lines but not in records.
    """

    def before_epoch(self, runner: Context) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()

    def before_iter(self, runner: Context) -> None:
        """Report the time until the batch was there."""
        waited = time.perf_counter() - self._begin
        runner.log_buffer.update({"data_time": waited}, record=False)

    def after_iter(self, runner: Context) -> None:
        """Report the time until the step was done."""
        now = time.perf_counter()
        runner.log_buffer.update({"time": now - self._begin}, record=False)
        self._begin = now
