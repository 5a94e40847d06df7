"""How far a run has come in its workflow and in its training loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disteval.estimator import rng
from disteval.estimator.feed import Feed, sampler_with_epoch


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
