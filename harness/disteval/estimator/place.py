"""A place in a run, from which the next run, or another process, goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from disteval.estimator.rng import RngState


@dataclass(frozen=True)
class Place:
    """Where in a workflow, and in its training loaders, a runner is.

    Attributes:
        workflow: The pairs of mode and count, as lists.
        phase: Phases that are done in this turn of the workflow.
        done: Iterations that are done in the next phase.
        feeds: `Feed.position` of each training loader.
        starts: This rank's `Feed.start_of_pass` of each; None where it is not known.
        sampler_seed: The seed of the training loader's sampler, where it has one.
    """

    workflow: list[list[Any]]
    phase: int
    done: int
    feeds: list[dict[str, int]]
    starts: list[RngState | None]
    sampler_seed: int | None

    def position(self) -> dict[str, Any]:
        """Return what is the same on every rank, in plain containers."""
        return {
            "workflow": self.workflow,
            "phase": self.phase,
            "done": self.done,
            "feeds": self.feeds,
        }

    @classmethod
    def of(
        cls, position: Mapping[str, Any], starts: list[RngState | None] | None, seed: int | None
    ) -> Place:
        """Return the place of a `position`; without ``starts``, no pass is resumed in its middle.

        Args:
            position: What `position` returned.
            starts: This rank's; None where the world size is another.
            seed: The sampler's.
        """
        feeds = [dict(feed) for feed in position["feeds"]]
        workflow = [list(entry) for entry in position["workflow"]]
        known = starts or [None] * len(feeds)
        return cls(workflow, position["phase"], position["done"], feeds, known, seed)
