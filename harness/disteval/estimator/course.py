"""How far a run has come in its workflow and in its training loaders, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from disteval import traces
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.loaders import sampler_with_epoch


class Feed:
    """The batches of one training loader, with its place in a pass, where it can continue.

    To continue in the middle of a pass, the pass is begun with the random number generators as they
    were at its start, its first batches are drawn and dropped, and the generators are put back. So
    the samples that follow are those that would have followed.

    Attributes:
        epoch: The number of the current pass.
        done: The batches of the current pass that were handed out.
    """

    def __init__(self, loader: Any, epoch: int = 0) -> None:
        self.loader = loader
        self.epoch = epoch
        self._reset()

    def _reset(self) -> None:
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
        sampler = sampler_with_epoch(self.loader)
        if sampler is not None:  # without this, all epochs are shuffled alike
            sampler.set_epoch(self.epoch)
        self._iterator = iter(self.loader)
        for _ in range(self.done):
            next(self._iterator)
        if self.done:
            rng.restore(now)

    def batches(self, *, to_the_end: bool) -> Iterator[Any]:
        """Yield the rest of the pass, up to the loader's length or else to its very end."""
        assert self._iterator is not None
        while to_the_end or not self.complete:
            try:
                with traces.span("data", "load"):
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
        self._reset()

    def position(self) -> tuple[dict[str, int], rng.RngState | None]:
        """Return the place in the loader, and this rank's generators at the start of the pass.

        The generators are None outside of a pass; the place is the same on every rank.
        """
        ended = self.complete
        done = 0 if ended else self.done
        place = {"epoch": self.epoch + ended, "done": done, "length": len(self.loader)}
        return place, self._start if done else None

    def go_to(self, position: Mapping[str, int], start: Mapping[str, Any] | None) -> None:
        """Go to a place in a pass, or to the start of that pass if ``start`` is not known."""
        self.epoch = position["epoch"]
        if start is not None and position["length"] == len(self.loader):
            self.done = position["done"]
            self._start = dict(start)


class Flow(NamedTuple):
    """An entry of a workflow, and this rank's loader for it."""

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
    """

    def __init__(self, by_epoch: bool) -> None:
        self._by_epoch = by_epoch
        self.flows: list[Flow] = []
        self.feeds: list[Feed] = []
        self.phase = 0
        self.done = 0
        self.in_step = False
        self.pending: Mapping[str, Any] | None = None
        self._sampler_seed: int | None = None

    def begin(self, flows: list[Flow], epoch: int) -> bool:
        """Take up a workflow, at the pending place if that belongs to the same workflow.

        Returns:
            Whether the workflow trains; if not, the pending place is left to the next run.
        """
        self.flows, self.feeds = flows, []
        self.phase = self.done = 0
        for flow in flows:
            if flow.mode == "train":
                self.feed(flow.loader, epoch)
        if not self.feeds:
            return False
        place, self.pending = self.pending or {}, None
        for feed in self.feeds:
            sampler: Any = sampler_with_epoch(feed.loader)
            if place.get("sampler_seed") is not None and hasattr(sampler, "seed"):
                sampler.seed = place["sampler_seed"]
            self._sampler_seed = getattr(sampler, "seed", None)
        if place.get("workflow") == self._plain and len(place["feeds"]) == len(self.feeds):
            self.phase, self.done = place["phase"], place["done"]
            for feed, at, start in zip(self.feeds, place["feeds"], place["starts"], strict=True):
                feed.go_to(at, start)
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
        """Return the place from which a run can continue, in which ``starts`` are this rank's."""
        if self.pending is not None:
            return self.pending
        passed = self._by_epoch and any(feed.complete for feed in self.feeds)
        return {
            "workflow": self._plain,
            "phase": self.phase + passed,
            "done": 0 if self._by_epoch else self.done + self.in_step,
            "feeds": [feed.position()[0] for feed in self.feeds],
            "starts": [feed.position()[1] for feed in self.feeds],
            "sampler_seed": self._sampler_seed,
        }

    @property
    def _plain(self) -> list[list[Any]]:
        return [list(flow[:2]) for flow in self.flows]


def place_in(state: Mapping[str, Any], world_size: int, rank: int) -> Mapping[str, Any]:
    """Return a rank's place in a checkpoint, and set the generators as they are to be there.

    With another world size than the checkpoint's they are seeded, and interrupted passes are begun
    anew.
    """
    place = dict(state["position"])
    if len(state["rng"]) == world_size:
        own = state["rng"][rank]
        place["starts"] = own["passes"]
        rng.restore(own["now"])
    else:
        place["starts"] = [None] * len(place["feeds"])
        seed = state.get("meta", {}).get("seed", place["sampler_seed"]) or 0
        rng.derive(int(seed), state["iter"], rank)
    return place
