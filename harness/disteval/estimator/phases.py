"""Single phases of a run, and the place that has been reached in them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from disteval.estimator import rng, steps
from disteval.estimator.components import Components
from disteval.estimator.feed import Feed, sampler_with_epoch
from disteval.estimator.place import Place
from disteval.estimator.records import gather_record
from disteval.estimator.validation import validate
from disteval.estimator.workflow import Flow


class Phases(Components, ABC):
    """Carries out training and validation, and knows how far it is, also where hooks are called."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._flows: list[Flow] = []
        self._feeds: list[Feed] = []
        self._phase = 0  # phases that are done in this turn of the workflow
        self._done = 0  # iterations that are done in the current phase
        self._in_step = 0  # 1 while hooks see an iteration that is not counted yet
        self._samples = 0
        # For the next run: where the last one ended, or what was resumed.
        self._next: Place | None = None
        self._generators: rng.RngState | None = None

    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """Validate over a whole loader, and publish the record.

        Args:
            data_loader: This rank's batches.
            **kwargs: For each ``val_step``.
        """
        self._validate(data_loader, None, **kwargs)

    def trained(self) -> tuple[int, int]:
        """Return the epochs and iterations that are complete, also where hooks are called."""
        ended = any(feed.complete for feed in self._feeds)
        return self.epoch + ended, self.iter + self._in_step

    def place(self) -> Place:
        """Return the place in the workflow and in the loaders, for the next run or a checkpoint."""
        if self._next is not None:
            return self._next
        phase, done = self._place_in_turn()
        return Place(
            [[flow.mode, flow.times] for flow in self._flows],
            phase,
            done,
            [feed.position() for feed in self._feeds],
            [feed.start_of_pass() for feed in self._feeds],
            self.sampler_seed,
        )

    def generators(self) -> rng.RngState:
        """Return the random number generators' state from which this rank's training goes on."""
        return self._generators or rng.capture()

    def _take_generators(self) -> None:
        if self._generators is not None:
            rng.restore(self._generators)
        self._generators = None

    @abstractmethod
    def _place_in_turn(self) -> tuple[int, int]:
        """Return the phases done in this turn, and the iterations done of the next."""

    def _go_to(self, place: Place | None) -> None:
        """Go where the last run ended, or what was resumed was saved."""
        self._next = None
        self._phase = self._done = 0
        for feed in self._feeds:
            sampler: Any = sampler_with_epoch(feed.loader)
            if place is not None and place.sampler_seed is not None and hasattr(sampler, "seed"):
                sampler.seed = place.sampler_seed
            self.sampler_seed = getattr(sampler, "seed", None)
        flows = [[flow.mode, flow.times] for flow in self._flows]
        if place is None or place.workflow != flows or len(place.feeds) != len(self._feeds):
            return
        self._phase, self._done = place.phase, place.done
        for feed, position, start in zip(self._feeds, place.feeds, place.starts, strict=True):
            feed.go_to(position, start)

    def _feed(self, loader: Any) -> Feed:
        """Return a training loader's feed, always the same in a run."""
        for feed in self._feeds:
            if feed.loader is loader:
                return feed
        self._feeds.append(Feed(loader, self.epoch))
        return self._feeds[-1]

    def _begin_phase(self, mode: str, loader: Any) -> None:
        self.mode = mode
        self.data_loader = loader
        self.log_buffer.clear()
        self._samples = 0
        if mode == "train":
            self.model.train()
            self._next = self._generators = None

    def _train_batch(self, feed: Feed, batch: Any, **kwargs: Any) -> None:
        self.data_batch = batch
        self.inner_iter = feed.done - 1
        self.call_hook("before_train_iter")
        self.outputs = steps.train_step(
            self.model, self.batch_processor, batch, self.optimizer, **kwargs
        )
        self._samples += steps.report(self.outputs, self.log_buffer)
        self._in_step = 1
        try:
            self.call_hook("after_train_iter")
        finally:
            self._in_step = 0
        self.iter += 1

    def _end_training(self, begin: float) -> None:
        seconds = time.perf_counter() - begin
        self.publish(gather_record(self, "train", self.log_buffer, self._samples, seconds)[0])

    def _validate(self, loader: Any, limit: int | None, **kwargs: Any) -> None:
        self._begin_phase("val", loader)
        self.publish(validate(self, loader, limit=limit, stages=True, **kwargs))
        self.call_hook("after_val_epoch")

    def _tell_progress(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)
