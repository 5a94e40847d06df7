"""The hook that has samplers shuffle anew each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disteval.estimator.feed import sampler_with_epoch
from disteval.estimator.hooks.hook import Hook

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


class DistSamplerSeedHook(Hook):
    """Tells the training loader's sampler which epoch begins; without it, all are shuffled alike.

    The sampler is the loader's ``sampler``, its ``batch_sampler``, or the latter's ``sampler``:
    the first that has ``set_epoch``.
    """

    def before_train_epoch(self, runner: BaseRunner) -> None:
        """Call ``set_epoch``, where there is one."""
        sampler = sampler_with_epoch(runner.data_loader)
        if sampler is not None:
            sampler.set_epoch(runner.epoch)
