"""The runner whose workflow counts epochs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, cycle, islice
from typing import Any

from disteval.errors import UsageError
from disteval.estimator.runner import BaseRunner
from disteval.estimator.workflow import Flow


class EpochBasedRunner(BaseRunner):
    """Runs whole passes: ``[('train', 2), ('val', 1)]`` is two epochs, then one validation.

    Each pass is a phase with a record. Training ends at ``max_epochs``; see `BaseRunner`.

    Raises:
        UsageError: ``max_iters`` was given.
    """

    limited_by = "max_epochs"
    by_epoch = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.max_iters is not None:
            raise UsageError(
                f"max_iters={self.max_iters}: an EpochBasedRunner ends with an epoch; give "
                f"max_epochs, or use IterBasedRunner"
            )

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train for an epoch, or for what is left of one that was resumed.

        Args:
            data_loader: This rank's batches.
            **kwargs: For each ``train_step``.
        """
        self._begin_phase("train", data_loader)
        feed = self._feed(data_loader)
        self.call_hook("before_train_epoch")
        begin = time.perf_counter()
        feed.begin()
        for batch in feed:
            self._train_batch(feed, batch, **kwargs)
            self._tell_progress(feed.done, len(data_loader))
        self._end_training(begin)
        self.call_hook("after_train_epoch")
        feed.end()
        self.epoch += 1

    def end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        """Return the epoch at which training ends."""
        return self.max_epochs if max_epochs is None else max_epochs

    def _set_end(self, end: int) -> None:
        self.max_epochs = end
        if self._feeds:
            phases = self._phases()
            to_come = chain(phases[self._phase :], cycle(phases))
            passes = (len(loader) for mode, loader in to_come if mode == "train")
            left = sum(islice(passes, max(end - self.epoch, 0)))
            self.max_iters = self.iter + left - sum(feed.done for feed in self._feeds)

    def _is_due(self) -> bool:
        return self.max_epochs is not None and self.epoch < self.max_epochs

    def _run_turn(self) -> None:
        phases = self._phases()
        for at in range(self._phase, len(phases)):
            self._phase = at
            mode, loader = phases[at]
            if mode == "val":
                self.val(loader)
            elif self._is_due():
                self.train(loader)

    def _phases(self) -> list[tuple[str, Any]]:
        """The passes of one turn."""
        return [(flow.mode, flow.loader) for flow in self._flows for _ in range(flow.times)]

    def _place_in_turn(self) -> tuple[int, int]:
        return self._phase + any(feed.complete for feed in self._feeds), 0
