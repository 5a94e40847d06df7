"""How far a run has come in its workflow and its training loaders, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from disteval import traces
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.loaders import sampler_with_epoch


class Entry(NamedTuple):
    """An entry of a workflow, and its loader: for training, this rank's share of the data."""

    mode: str
    times: int
    loader: Any


class Feed:
    """The batches of one training loader, which can continue in the middle of a pass.

    To do so, the pass is begun with the random number generators as they were at its start, its
    first batches are drawn and dropped, and the generators are put back. So the samples that
    follow are those that would have followed.

    Attributes:
        epoch: The number of the current pass.
        done: The batches of the current pass that were handed out.
    """

    def __init__(self, loader: Any, epoch: int = 0) -> None:
        self.loader, self.epoch = loader, epoch
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

    def state(self, *, in_step: bool) -> tuple[dict[str, int], rng.RngState | None]:
        """Return the place in the loader, and within a pass this rank's generators at its start.

        Within a step the pass has not ended: hooks at the end of the pass are still to be called.
        """
        ended = self.complete and not in_step
        done = 0 if ended else self.done
        place = {"epoch": self.epoch + ended, "done": done, "length": len(self.loader)}
        return place, self._start if done else None

    def go_to(self, place: Mapping[str, int], start: Mapping[str, Any] | None) -> None:
        """Go to a place in a pass, or to the start of that pass if ``start`` is not known."""
        self.epoch = place["epoch"]
        if start is not None and place["length"] == len(self.loader):
            self.done, self._start = place["done"], dict(start)
        else:
            self.epoch += place["done"] >= place["length"]


class Position:
    """The position of a training, which is kept in checkpoints.

    A workflow is run turn after turn. A turn consists of phases, each with one record.

    Attributes:
        feeds: The training loaders of the current run.
        phase: The number of phases that are done in this turn.
        done: The iterations that are done in the current phase, if it counts iterations.
        in_step: Whether hooks are called for an iteration that is not counted yet.
        recorded: Whether the current phase has its record, though not all hooks were called.
        reported: The samples, and sums of `LogBuffer.sums`, of this rank in the current phase
            before the state was kept that it continues from.
        pending: The state from which the next run continues; None while a run trains.
    """

    def __init__(self, by_epoch: bool) -> None:
        self._by_epoch = by_epoch
        self._workflow: list[list[Any]] = []
        self.feeds: list[Feed] = []
        self.phase = self.done = 0
        self.in_step = self.recorded = False
        self.reported: tuple[int, list[Any]] = (0, [])
        self.pending: Mapping[str, Any] | None = None
        self._sampler_seed: int | None = None

    def begin(self, entries: list[Entry], epoch: int) -> bool:
        """Take up a workflow, at the pending state if it is that of this workflow.

        Return whether the workflow trains; if not, the pending state is left to the next run.
        """
        self._workflow = [[entry.mode, entry.times] for entry in entries]
        self.feeds = []
        self.begin_phase(0)
        for entry in entries:
            if entry.mode == "train" and not any(f.loader is entry.loader for f in self.feeds):
                self.feeds.append(Feed(entry.loader, epoch))
        if not self.feeds:
            return False
        state, self.pending = self.pending or {}, None
        for feed in self.feeds:
            sampler: Any = sampler_with_epoch(feed.loader)
            if state.get("sampler_seed") is not None and hasattr(sampler, "seed"):
                sampler.seed = state["sampler_seed"]
            self._sampler_seed = getattr(sampler, "seed", None)
        if state.get("workflow") == self._workflow and len(state["feeds"]) == len(self.feeds):
            self.phase, self.done, self.reported = state["phase"], state["done"], state["reported"]
            for feed, at, start in zip(self.feeds, state["feeds"], state["starts"], strict=True):
                feed.go_to(at, start)
        return True

    def begin_phase(self, phase: int) -> None:
        """Go to the beginning of a phase."""
        self.phase, self.done, self.recorded, self.reported = phase, 0, False, (0, [])

    def feed(self, loader: Any) -> Feed:
        """Return a training loader's feed, the same one throughout a run."""
        return next(feed for feed in self.feeds if feed.loader is loader)

    def trained(self, epoch: int, iteration: int) -> tuple[int, int]:
        """Return the complete epochs and iterations, given those that the runner has counted."""
        return epoch + any(feed.complete for feed in self.feeds), iteration + self.in_step

    def state(self, samples: int = 0, sums: Sequence[Any] = ()) -> Mapping[str, Any]:
        """Return what a run continues from, in which ``starts`` and ``reported`` are this rank's.

        Args:
            samples: The samples that this rank has trained on in the current phase.
            sums: What it has reported of them, see `reported`.
        """
        if self.pending is not None:
            return self.pending
        feeds = [feed.state(in_step=self.in_step) for feed in self.feeds]
        return {
            "workflow": self._workflow,
            "phase": self.phase + self.recorded,
            "done": 0 if self._by_epoch or self.recorded else self.done + self.in_step,
            "feeds": [place for place, _ in feeds],
            "starts": [start for _, start in feeds],
            "reported": (0, []) if self.recorded else (samples, list(sums)),
            "sampler_seed": self._sampler_seed,
        }

    def resume(self, state: Mapping[str, Any], world_size: int, rank: int) -> None:
        """Take a rank's position from a checkpoint, and set the generators as they were there.

        With another world size than the checkpoint's they are seeded, and interrupted passes are
        begun anew.
        """
        place = dict(state["position"])
        if len(state["rng"]) == world_size:
            own = state["rng"][rank]
            place["starts"], place["reported"] = own["passes"], own["reported"]
            rng.restore(own["now"])
        else:
            place["starts"], place["reported"] = [None] * len(place["feeds"]), (0, [])
            # A pass or phase that only lacked its end is not repeated.
            at, done = place["phase"], place["done"]
            passed = any(each["done"] >= each["length"] for each in place["feeds"])
            if passed if self._by_epoch else 0 < place["workflow"][at][1] <= done:
                place["phase"], place["done"] = at + 1, 0
            seed = state.get("meta", {}).get("seed", place["sampler_seed"]) or 0
            rng.derive(int(seed), state["iter"], rank)
        self.pending = place
