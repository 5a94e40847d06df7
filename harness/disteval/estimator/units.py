"""The two runners: one whose workflow counts epochs, and one whose workflow counts iterations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle, islice
from typing import Any

from disteval.errors import UsageError
from disteval.estimator.course import Flow
from disteval.estimator.runner import BaseRunner, Phase


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
        """Train for an epoch, or for the rest of one that was resumed.

        Args:
            data_loader: This rank's batches.
            **kwargs: Arguments of each ``train_step``.
        """
        self._train(data_loader, None, **kwargs)

    def _phases_of(self, flow: Flow) -> list[Phase]:
        return [Phase(flow.mode, flow.loader, None)] * flow.times

    def _end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        return self.max_epochs if max_epochs is None else max_epochs

    def _set_end(self, end: int, phases: Sequence[Phase]) -> None:
        self.max_epochs = end
        feeds = self.course.feeds
        if feeds:
            to_come = chain(phases[self.course.phase :], cycle(phases))
            passes = (len(phase.loader) for phase in to_come if phase.mode == "train")
            left = sum(islice(passes, max(end - self.epoch, 0)))
            self.max_iters = self.iter + left - sum(feed.done for feed in feeds)

    def _is_due(self) -> bool:
        return self.max_epochs is not None and self.epoch < self.max_epochs


class IterBasedRunner(BaseRunner):
    """Runs iterations: ``[('train', 100), ('val', 20)]`` is 100 steps, then at most 20 batches.

    Each entry is a phase with a record. A training loader that is exhausted is begun again, as a
    new epoch; a validation begins at its loader's first batch and counts no batch twice. Training
    ends at ``max_iters``, or after ``max_epochs`` passes over the first training loader.
    """

    limited_by = "max_iters"
    by_epoch = False

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train for one iteration.

        Args:
            data_loader: This rank's batches, of which the next one is taken.
            **kwargs: Arguments of ``train_step``.
        """
        self.course.done = 0
        self._train(data_loader, 1, **kwargs)

    def _phases_of(self, flow: Flow) -> list[Phase]:
        return [Phase(flow.mode, flow.loader, flow.times)]

    def _end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        epochs = self.max_epochs if max_epochs is None else max_epochs
        for flow in flows:
            if flow.mode == "train" and isinstance(epochs, int):
                return epochs * max(len(flow.loader), 1)  # an empty loader is refused elsewhere
        return self.max_iters

    def _set_end(self, end: int, phases: Sequence[Phase]) -> None:
        self.max_iters = end

    def _is_due(self) -> bool:
        return self.max_iters is None or self.iter < self.max_iters
