"""Batches that are made by the lengths of samples: sorted by length, or by a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disteval.data.batching import Indices, Picked, filled_rows
from disteval.errors import UsageError

_CHUNK = 1024  # lengths become Python's numbers so many at a time


def plan_by_length(
    lengths: npt.NDArray[np.int64],
    world_size: int,
    rank: int,
    batch_size: int,
    *,
    sort: bool = False,
    max_tokens: int | None = None,
    pad: bool = True,
    step: int | None = None,
    numbers: Indices | None = None,
    loads: list[int] | None = None,
) -> LengthBatches:
    """Return the batches of one rank, made by the samples' lengths.

    The batches do not depend on the world size. They are dealt by falling cost, which is the
    number of samples times the longest length: in each round every rank gets one batch, and the
    rank with the smallest cost so far gets the most expensive one.

    Args:
        lengths: The length of each sample.
        world_size: The number of ranks.
        rank: The rank whose batches these are.
        batch_size: The most samples in a batch.
        sort: Whether samples are put into batches by falling length, equal ones in the order of
            the data set. Otherwise a batch holds consecutive samples.
        max_tokens: The most that a batch may cost; None sets no limit.
        pad: Whether every rank has equally many batches. A rank that has one batch less repeats
            the cheapest batch, and its samples do not count.
        step: The multiple to which the rows of the last batch are filled up, see `filled_rows`;
            None stands for ``batch_size``. With ``max_tokens`` no batch is filled up.
        numbers: The samples' numbers, for an error; None stands for 0, 1, 2, …
        loads: What each rank's batches have cost before, which is kept up to date.

    Raises:
        UsageError: One sample alone costs more than ``max_tokens``.
    """
    order = np.argsort(-lengths, kind="stable") if sort else np.arange(len(lengths))
    ordered = lengths[order]
    if max_tokens is None:
        starts = np.arange(0, len(lengths), batch_size)
    else:
        _check_budget(lengths, max_tokens, numbers)
        starts = np.fromiter(_starts(ordered, batch_size, max_tokens), np.int64)
    bounds = np.append(starts, len(lengths))
    longest = np.maximum.reduceat(ordered, starts) if len(starts) else starts
    costs = np.diff(bounds) * longest
    by_cost = np.argsort(-costs, kind="stable")
    mine = by_cost[_deal(costs[by_cost], rank, [0] * world_size if loads is None else loads)]
    padding = by_cost[-1:] if pad and len(mine) < -(-len(starts) // world_size) else by_cost[:0]
    every = np.concatenate([mine, padding])
    step = 1 if max_tokens is not None else step or batch_size
    return LengthBatches(order, bounds, every, len(mine), batch_size, step)


@dataclass(frozen=True, eq=False)
class LengthBatches:
    """Batches of samples in an order by length.

    Attributes:
        order: The numbers of all samples, in the order in which batches take them.
        bounds: Batch b takes ``order[bounds[b]:bounds[b + 1]]``.
        mine: The batches of this rank; those that do not count come last.
        counted: The number of this rank's batches that count.
        batch_size: The most samples in a batch.
        step: The number of rows of which a batch has a multiple, see `filled_rows`.
    """

    order: Indices
    bounds: Indices
    mine: Indices
    counted: int
    batch_size: int
    step: int

    @property
    def samples(self) -> int:
        """The number of samples, padding included."""
        return int(np.diff(self.bounds)[self.mine].sum())

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield some batches, see `disteval.data.batching.Plan`."""
        for turn, batch in enumerate(self.mine[first:last].tolist(), first):
            indices = self.order[self.bounds[batch] : self.bounds[batch + 1]]
            count = len(indices)
            rows = filled_rows(count, self.batch_size, self.step)
            yield Picked(indices, count if turn < self.counted else 0, rows)


def _check_budget(lengths: npt.NDArray[np.int64], max_tokens: int, numbers: Indices | None) -> None:
    longest = int(lengths.argmax()) if len(lengths) else 0
    if len(lengths) and lengths[longest] > max_tokens:
        number = longest if numbers is None else numbers[longest]
        raise UsageError(
            f"sample {number} has the length {lengths[longest]}, and "
            f"{int((lengths > max_tokens).sum())} of {len(lengths)} samples are longer than "
            f"max_tokens={max_tokens}; raise max_tokens, or cut the samples"
        )


def _starts(ordered: npt.NDArray[np.int64], batch_size: int, max_tokens: int) -> Iterator[int]:
    """Yield where each batch starts, so that it holds as many samples as fit."""
    count, longest = batch_size, 0  # as if a full batch ended here
    for begin in range(0, len(ordered), _CHUNK):
        for place, length in enumerate(ordered[begin : begin + _CHUNK].tolist(), begin):
            longest = max(longest, length)
            if count == batch_size or (count + 1) * longest > max_tokens:
                yield place
                count, longest = 0, length
            count += 1


def _deal(costs: npt.NDArray[np.int64], rank: int, loads: list[int]) -> Indices:
    """Return which batches a rank gets, of batches by falling cost."""
    mine, world_size = [], len(loads)
    for first in range(0, len(costs), world_size):
        ranks = sorted(range(world_size), key=loads.__getitem__)  # equal loads in order of ranks
        for number, cost in enumerate(costs[first : first + world_size].tolist(), first):
            receiver = ranks[number - first]
            loads[receiver] += cost
            if receiver == rank:
                mine.append(number)
    return np.array(mine, np.int64)
