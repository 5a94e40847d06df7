"""How far a training has come in its workflow and its loader, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from disteval import traces
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.loaders import sampler_with_epoch


class WorkflowEntry(NamedTuple):
    """An entry of a workflow, and its loader: for training, this rank's share of the data."""

    mode: str
    times: int
    loader: Any


class Position:
    """The position of a training, which is kept in checkpoints.

    A workflow is run turn after turn. A turn consists of phases, each with one record. Training
    draws batches in passes over one loader. To continue within a pass, it is begun with the random
    number generators as they were at its start, its first batches are drawn and dropped, and the
    generators are put back. So the samples that follow are those that would have followed.

    Attributes:
        loader: The training loader of the current run; None before there is one.
        drawn: The batches of the current pass that were handed out.
        running: Whether a pass has begun and was not ended.
        phase: The number of phases that are done in this turn.
        count: The iterations of the current phase of training.
        done: Those of them that are done.
        in_step: Whether hooks are called for an iteration that is not counted yet.
        reported: The samples, and sums of `LogBuffer.sums`, of this rank in the current phase
            before the state was kept that it continues from.
        pending: The state from which the next run continues; None while a run trains.
    """

    def __init__(self, by_epoch: bool) -> None:
        self._by_epoch = by_epoch
        self._workflow: list[list[Any]] = []
        self._sampler_seed: int | None = None
        self._batches: Iterator[Any]
        self._start: rng.RngState | None  # the generators at the start of the pass
        self.loader: Any = None
        self.count, self.in_step = 0, False
        self.pending: Mapping[str, Any] | None = None
        self.begin_phase(0)
        self._reset_pass()

    def begin(self, entries: Sequence[WorkflowEntry]) -> bool:
        """Take up a workflow, at the pending state if it is that of this workflow.

        Return whether the workflow trains; if not, the pending state is left to the next run.
        """
        self._workflow = [[entry.mode, entry.times] for entry in entries]
        self.loader = next((entry.loader for entry in entries if entry.mode == "train"), None)
        self.begin_phase(0)
        self._reset_pass()
        if self.loader is None:
            return False
        state, self.pending = self.pending or {}, None
        sampler: Any = sampler_with_epoch(self.loader)
        if state.get("sampler_seed") is not None and hasattr(sampler, "seed"):
            sampler.seed = state["sampler_seed"]
        self._sampler_seed = getattr(sampler, "seed", None)
        if state.get("workflow") == self._workflow:
            self.phase, self.done, self.reported = state["phase"], state["done"], state["reported"]
            if state["start"] is not None and state["length"] == len(self.loader):
                self.drawn, self._start = state["drawn"], state["start"]
            elif 0 < state["count"] <= self.done:  # a phase that only lacks its end
                self.begin_phase(self.phase + 1)
            elif self._by_epoch:
                self.begin_phase(self.phase)
        return True

    def begin_phase(self, phase: int) -> None:
        """Go to the beginning of a phase."""
        self.phase, self.done, self.reported = phase, 0, (0, [])

    @property
    def complete(self) -> bool:
        """Whether the pass has handed out all its batches."""
        return self.loader is not None and 0 < len(self.loader) <= self.drawn

    def begin_pass(self, epoch: int) -> None:
        """Begin a pass, or continue the one that was resumed."""
        now = rng.capture()
        if self._start is not None:
            rng.restore(self._start)
        self._start = rng.capture()
        sampler = sampler_with_epoch(self.loader)
        if sampler is not None:  # without this, all epochs are shuffled alike
            sampler.set_epoch(epoch)
        self._batches, self.running = iter(self.loader), True
        for _ in range(self.drawn):
            next(self._batches)
        if self.drawn:
            rng.restore(now)

    def draw(self) -> Any:
        """Return the next batch of the pass."""
        with traces.span("data", "load"):
            batch = next(self._batches, self)
        if batch is self:
            raise UsageError(
                f"the loader has length {len(self.loader)} but ended after {self.drawn} batches; "
                f"give one whose length is right"
            )
        self.drawn += 1
        return batch

    def end_pass(self) -> None:
        """End the pass, which the loader must end, too; `begin_pass` begins the next."""
        if self.running and next(self._batches, self) is not self:
            raise UsageError(
                f"the loader has length {len(self.loader)} and more batches; give one whose "
                f"length is right"
            )
        self._reset_pass()

    def _reset_pass(self) -> None:
        self._batches, self._start = iter(()), None
        self.drawn, self.running = 0, False

    def trained(self, epoch: int, iteration: int) -> tuple[int, int]:
        """Return the complete epochs and iterations, given those that the runner has counted."""
        return epoch + self.complete, iteration + self.in_step

    def state(self, samples: int = 0, sums: Sequence[Any] = ()) -> Mapping[str, Any]:
        """Return what a run continues from, in which ``start`` and ``reported`` are this rank's.

        Within a step the pass has not ended: hooks at the end of the pass are still to be called.

        Args:
            samples: The samples that this rank has trained on in the current phase.
            sums: What it has reported of them, see `reported`.
        """
        if self.pending is not None:
            return self.pending
        drawn = 0 if self.complete and not self.in_step else self.drawn
        done = self.done + self.in_step
        return {
            "workflow": self._workflow,
            "phase": self.phase,
            "count": self.count,
            "done": done,
            "drawn": drawn,
            "length": 0 if self.loader is None else len(self.loader),
            "start": self._start if drawn else None,
            "reported": (samples, list(sums)) if done else (0, []),
            "sampler_seed": self._sampler_seed,
        }

    def resume(self, state: Mapping[str, Any], world_size: int, rank: int) -> None:
        """Take a rank's position from a checkpoint, and set the generators as they were there.

        With another world size than the checkpoint's they are seeded, and an interrupted pass is
        begun anew.
        """
        place = dict(state["position"])
        if len(state["rng"]) == world_size:
            own = state["rng"][rank]
            place["start"], place["reported"] = own["start"], own["reported"]
            rng.restore(own["now"])
        else:
            place["start"], place["reported"] = None, (0, [])
            seed = state.get("meta", {}).get("seed", place["sampler_seed"]) or 0
            rng.derive(int(seed), state["iter"], rank)
        self.pending = place
