"""A training loader's batches, pass after pass, from any batch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DistributedSampler

from disteval.errors import UsageError
from disteval.estimator import rng


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


def sampler_with_epoch(loader: Any) -> Any | None:
    """Return the object that shuffles a loader by epoch; None if nothing has ``set_epoch``.

    It is the loader's ``sampler``, its ``batch_sampler``, or the latter's ``sampler``.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", 0))
    for sampler in found:
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
    return None


def check_exact(loader: Any) -> None:
    """Refuse a validation loader whose sampler gives equally many samples to each rank.

    Raises:
        UsageError: A ``DistributedSampler`` repeats samples for that, or leaves some out.
    """
    sampler = sampler_with_epoch(loader)
    if not isinstance(sampler, DistributedSampler):
        return
    surplus = int(sampler.total_size - len(sampler.dataset))
    if surplus:
        what = (
            f"counts {surplus} samples twice" if surplus > 0 else f"leaves out {-surplus} samples"
        )
        raise UsageError(
            f"the validation loader's DistributedSampler {what}; to count each sample once, give "
            f"sampler=ShardPlan(size, world_size, rank, pad=False).indices"
        )
