"""A training loader's batches, pass after pass, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from disteval.errors import UsageError
from disteval.estimator import rng


class Feed:
    """The batches of one loader; knows where in a pass it is, and can go on there.

    A pass that is resumed in its middle is begun with the generators as they were at its start, its
    first batches are drawn and dropped, and the generators are put back: so it goes on with the
    very samples that would have come.

    Args:
        loader: Any sized iterable of batches.
        epoch: The number of the first pass.
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
        """Whether a pass has begun."""
        return self._iterator is not None

    @property
    def complete(self) -> bool:
        """Whether the pass has handed out all its batches."""
        return self._exhausted or 0 < len(self.loader) <= self.done

    def begin(self) -> None:
        """Begin a pass, or go on with the one that was resumed."""
        now = rng.capture()
        if self._start is not None:
            rng.restore(self._start)
        self._start = rng.capture()
        self._iterator = iter(self.loader)
        for _ in range(self.done):
            next(self._iterator)
        if self.done:
            rng.restore(now)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of the pass."""
        assert self._iterator is not None
        for batch in self._iterator:
            self.done += 1
            yield batch
        self._exhausted = True

    def next(self) -> Any:
        """Return the next batch of the pass.

        Raises:
            UsageError: There is none, though the loader's length says so.
        """
        assert self._iterator is not None
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise UsageError(
                f"the loader has length {len(self.loader)} but ended after {self.done} batches"
            ) from None
        self.done += 1
        return batch

    def end(self) -> None:
        """Let the next pass follow."""
        self.epoch += 1
        self.done = 0
        self._iterator = self._start = None
        self._exhausted = False

    def position(self) -> dict[str, int]:
        """Return the place in the loader, for `go_to`."""
        ended = self.complete
        return {
            "epoch": self.epoch + ended,
            "done": 0 if ended else self.done,
            "length": len(self.loader),
        }

    def start_of_pass(self) -> rng.RngState | None:
        """Return the generators' state at the start of a pass that is in its middle."""
        return None if self.complete or not self.done else self._start

    def go_to(self, position: Mapping[str, int], start: Mapping[str, Any] | None) -> None:
        """Go to a place; to the start of its pass, where the middle can't be found again.

        Args:
            position: What `position` returned.
            start: This rank's `start_of_pass`; None where the world size is another.
        """
        self.epoch = position["epoch"]
        if start is not None and position["length"] == len(self.loader):
            self.done = position["done"]
            self._start = dict(start)


def sampler_with_epoch(loader: Any) -> Any | None:
    """Return what shuffles a loader by epoch: its sampler, batch sampler, or the latter's."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", 0))
    for sampler in found:
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
    return None


def surplus(loader: Any) -> int:
    """Return how many samples more than there are a ``DistributedSampler`` deals to all ranks.

    It repeats some so that all have equally many, or leaves some out, and the number is negative.
    """
    sampler = sampler_with_epoch(loader)
    if not isinstance(sampler, torch.utils.data.DistributedSampler):
        return 0
    return int(sampler.total_size - len(sampler.dataset))
