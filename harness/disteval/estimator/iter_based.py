"""The runner whose workflow counts iterations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from disteval.estimator.runner import BaseRunner
from disteval.estimator.workflow import Flow


class IterBasedRunner(BaseRunner):
    """Runs iterations: ``[('train', 100), ('val', 20)]`` is 100 steps, then at most 20 batches.

    Each entry is a phase with a record. A training loader that is exhausted is begun again, as a
    new epoch; a validation begins at its loader's first batch and counts none twice. Training ends
    at ``max_iters``, or after ``max_epochs`` passes over the first training loader.
    """

    limited_by = "max_iters"
    by_epoch = False

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train for one iteration.

        Args:
            data_loader: This rank's batches; the next one is taken.
            **kwargs: For ``train_step``.
        """
        self._done = 0
        self._train(data_loader, 1, **kwargs)

    def end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        """Return the iteration at which training ends."""
        epochs = self.max_epochs if max_epochs is None else max_epochs
        for flow in flows:
            if flow.mode == "train" and isinstance(epochs, int):
                return epochs * max(len(flow.loader), 1)  # that it is empty is said elsewhere
        return self.max_iters

    def _set_end(self, end: int) -> None:
        self.max_iters = end

    def _is_due(self) -> bool:
        return self.max_iters is None or self.iter < self.max_iters

    def _run_turn(self) -> None:
        for at in range(self._phase, len(self._flows)):
            mode, times, loader = self._flows[at]
            self._phase = at
            if mode == "val":
                self._validate(loader, times)
            elif self._is_due() and self._done < times:
                self._train(loader, times)
            self._done = 0

    def _train(self, loader: Any, count: int, **kwargs: Any) -> None:
        self._begin_phase("train", loader)
        feed = self._feed(loader)
        begin = time.perf_counter()
        while self._done < count and self._is_due():
            self.epoch = feed.epoch
            if not feed.running:
                self.call_hook("before_train_epoch")
                feed.begin()
            self._train_batch(feed, feed.next(), **kwargs)
            self._done += 1
            self._tell_progress(self._done, count)
            if feed.complete:
                self.call_hook("after_train_epoch")
                feed.end()
                self.epoch = feed.epoch
        self._end_training(begin)

    def _place_in_turn(self) -> tuple[int, int]:
        return self._phase, self._done + self._in_step
