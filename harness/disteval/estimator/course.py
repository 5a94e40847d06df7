"""How far a run has come in its workflow and in its training loaders, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.loaders import sampler_with_epoch


class Feed:
    """The batches of one loader, which remembers its place in a pass and can continue from there.

    To continue in the middle of a pass, the pass is begun with the random number generators as they
    were at its start, its first batches are drawn and dropped, and the generators are put back. So
    the samples that follow are those that would have followed.

    Args:
        loader: Any iterable of batches with a length.
        epoch: The number of the first pass.

    Attributes:
        done: The batches of the current pass that were handed out.
    """

    def __init__(self, loader: Any, epoch: int = 0) -> None:
        self.loader = loader
        self.epoch = epoch
        self.done = 0
        self._iterator: Iterator[Any] | None = None
        self._start: rng.RngState | None = None
        self._exhausted = False

    @property
    def running(self) -> bool:
        """Whether a pass has begun and was not ended."""
        return self._iterator is not None

    @property
    def complete(self) -> bool:
        """Whether the pass has handed out all its batches."""
        return self._exhausted or 0 < len(self.loader) <= self.done

    def begin(self) -> None:
        """Begin a pass, or continue the one that was resumed."""
        now = rng.capture()
        if self._start is not None:
            rng.restore(self._start)
        self._start = rng.capture()
        self._iterator = iter(self.loader)
        for _ in range(self.done):
            next(self._iterator)
        if self.done:
            rng.restore(now)

    def batches(self, *, to_the_end: bool) -> Iterator[Any]:
        """Yield the rest of the pass.

        Args:
            to_the_end: Whether to continue until the loader ends, even past its length.

        Raises:
            UsageError: The loader ended before its length, and ``to_the_end`` is false.
        """
        assert self._iterator is not None
        while to_the_end or not self.complete:
            try:
                batch = next(self._iterator)
            except StopIteration:
                if to_the_end:
                    break
                raise UsageError(
                    f"the loader has length {len(self.loader)} but ended after {self.done} "
                    f"batches; give one whose length is right"
                ) from None
            except BaseException:
                self._iterator = None  # it may be unusable; `begin` continues with another one
                raise
            self.done += 1
            yield batch
        self._exhausted = True

    def end(self) -> None:
        """End the pass; `begin` starts the next."""
        self.epoch += 1
        self.done = 0
        self._iterator = self._start = None
        self._exhausted = False

    def position(self) -> dict[str, int]:
        """Return the place in the loader, which is the same on every rank, for `go_to`."""
        ended = self.complete
        return {
            "epoch": self.epoch + ended,
            "done": 0 if ended else self.done,
            "length": len(self.loader),
        }

    def start_of_pass(self) -> rng.RngState | None:
        """Return this rank's generators at the start of a pass; None outside of a pass."""
        return None if self.complete or not self.done else self._start

    def go_to(self, position: Mapping[str, int], start: Mapping[str, Any] | None) -> None:
        """Go to a place in a pass, or to the start of that pass if the place can't be found.

        Args:
            position: The result of `position`.
            start: This rank's result of `start_of_pass`; None if the world size has changed.
        """
        self.epoch = position["epoch"]
        if start is not None and position["length"] == len(self.loader):
            self.done = position["done"]
            self._start = dict(start)


class Flow(NamedTuple):
    """An entry of a workflow and its loader.

    Attributes:
        mode: ``train`` or ``val``.
        times: Its epochs or iterations in each turn of the workflow.
        loader: This rank's batches.
    """

    mode: str
    times: int
    loader: Any


class Course:
    """The place of a training, which can be written to a checkpoint and found again.

    A workflow is run turn after turn. A turn consists of phases, each with one record.

    Attributes:
        flows: The entries of the workflow.
        feeds: The training loaders of the current run.
        phase: The number of phases that are done in this turn.
        done: The iterations that are done in the current phase, if it counts iterations.
        in_step: Whether hooks are called for an iteration that is not counted yet.
        pending: The place from which the next run continues; None while a run trains.
        sampler_seed: The seed of the training loader's sampler, if it has one.
    """

    def __init__(self, by_epoch: bool) -> None:
        self._by_epoch = by_epoch
        self.flows: list[Flow] = []
        self.feeds: list[Feed] = []
        self.phase = 0
        self.done = 0
        self.in_step = False
        self.pending: Mapping[str, Any] | None = None
        self.sampler_seed: int | None = None

    def begin(self, flows: list[Flow], epoch: int) -> bool:
        """Take up a workflow, at the pending place if it belongs to this workflow.

        Args:
            flows: The workflow's entries.
            epoch: The epochs that are trained.

        Returns:
            Whether the workflow trains; if not, the pending place is left to the next run.
        """
        self.flows, self.feeds = flows, []
        self.phase = self.done = 0
        trained = [self.feed(flow.loader, epoch) for flow in flows if flow.mode == "train"]
        if not trained:
            return False
        place, self.pending = self.pending, None
        seed = None if place is None else place["sampler_seed"]
        for feed in self.feeds:
            sampler: Any = sampler_with_epoch(feed.loader)
            if seed is not None and hasattr(sampler, "seed"):
                sampler.seed = seed
            self.sampler_seed = getattr(sampler, "seed", None)
        if place is not None and self._fits(place):
            self.phase, self.done = place["phase"], place["done"]
            for feed, position, start in zip(
                self.feeds, place["feeds"], place["starts"], strict=True
            ):
                feed.go_to(position, start)
        return True

    def feed(self, loader: Any, epoch: int) -> Feed:
        """Return a training loader's feed, the same one throughout a run."""
        for feed in self.feeds:
            if feed.loader is loader:
                return feed
        self.feeds.append(Feed(loader, epoch))
        return self.feeds[-1]

    def trained(self, epoch: int, iteration: int) -> tuple[int, int]:
        """Return the complete epochs and iterations, given those that the runner has counted."""
        return epoch + any(feed.complete for feed in self.feeds), iteration + self.in_step

    def place(self) -> Mapping[str, Any]:
        """Return the place from which the next run, or another process, can continue.

        ``starts`` differs from rank to rank; see `Feed.start_of_pass`.
        """
        if self.pending is not None:
            return self.pending
        passed = self._by_epoch and any(feed.complete for feed in self.feeds)
        return {
            "workflow": _plain(self.flows),
            "phase": self.phase + passed,
            "done": 0 if self._by_epoch else self.done + self.in_step,
            "feeds": [feed.position() for feed in self.feeds],
            "starts": [feed.start_of_pass() for feed in self.feeds],
            "sampler_seed": self.sampler_seed,
        }

    def _fits(self, place: Mapping[str, Any]) -> bool:
        same_workflow = _plain(place["workflow"]) == _plain(self.flows)
        return same_workflow and len(place["feeds"]) == len(self.feeds)


def place_of(state: Mapping[str, Any], starts: list[rng.RngState | None] | None) -> dict[str, Any]:
    """Return the place that a checkpoint holds.

    Args:
        state: The checkpoint.
        starts: This rank's entry of the place; None if the world size has changed, so that passes
            are begun anew.
    """
    position = dict(state["position"])
    known = starts if starts is not None else [None] * len(position["feeds"])
    return {**position, "starts": known, "sampler_seed": state.get("sampler_seed")}


def _plain(workflow: Sequence[Any]) -> list[list[Any]]:
    return [list(entry[:2]) for entry in workflow]
