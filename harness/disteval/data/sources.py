"""Where batches come from: samples that have numbers, streams that every rank reads, and shards."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_switched_on
from disteval.contract import BaseDistBackend
from disteval.coverage import add_contents
from disteval.data.collate import Collate, assemble
from disteval.data.contents import DIGESTS, SHARD_BITS, Elements, total
from disteval.data.digests import hash_snapshots, snapshot
from disteval.data.length_of import ByLength, length_of
from disteval.data.lengths import gather_lengths
from disteval.data.plan import Batch, Indices, Picked, Plan, filled_rows
from disteval.data.samples import Items, Sized
from disteval.data.shards import ShardedStream
from disteval.errors import HarnessError, SampleError, UsageError, describe_error

if TYPE_CHECKING:
    from disteval.data.processes import ProcessLoader

WINDOW = 64
"""The number of full batches whose elements are read before batches are made of them by length."""

FIRST = 8
"""The number of samples that every rank evaluates, to show that it has the same model."""

Result = TypeVar("Result")

Units = Iterable[tuple[int, bool]]
"""Units, and whether their samples count on this rank."""

Taken = tuple[int, Any, bytes]
"""An element of a stream: its global number, the element, and its snapshot."""


class Form(NamedTuple):
    """How samples become batches; see `disteval.evaluate`.

    Attributes:
        batch_size: The most samples in a batch.
        step: The multiple to which the rows of a batch are filled up.
        limit: The number of samples to evaluate; None evaluates all.
        by_length: A `ByLength`, if batches are made by lengths.
        collate: Makes a batch of a list of samples.
        workers: The number of workers that read batches ahead.
        even: Whether every rank calls ``predict`` equally often, where that costs no message.
    """

    batch_size: int
    step: int
    limit: int | None
    by_length: ByLength | None
    collate: Collate
    workers: int = 0
    even: bool = True

    def assembled(self, taken: Sequence[Taken], unit: int, *, counts: bool = True) -> Batch:
        """Return a batch of elements."""
        numbers = np.array([number for number, *_ in taken], np.int64)
        rows = filled_rows(len(taken), self.batch_size, self.step)
        picked = Picked(numbers, len(taken) if counts else 0, rows, unit)
        found = [snapshot for *_, snapshot in taken] if counts else []
        batch = assemble([element for _, element, _ in taken], picked, self.collate, found)
        return batch if counts else batch._replace(samples=0)


class Stored(NamedTuple):
    """What an earlier run has evaluated.

    Attributes:
        ids: The samples' numbers, sorted: int64 of shape (N,).
        lengths: The number of elements of each part of a stream that was read to its end.
        contents: The digest of the elements of each part that were evaluated; None if unknown.
    """

    ids: Indices
    lengths: Mapping[int, int]
    contents: Mapping[int, int | None]

    def has(self, ids: Indices) -> npt.NDArray[np.bool_]:
        """Return for each number whether it is there."""
        if not len(self.ids):
            return np.zeros(len(ids), np.bool_)
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found: npt.NDArray[np.bool_] = self.ids[place] == ids
        return found

    def has_part(self, part: int) -> bool:
        """Return whether every element of a part of a stream is there."""
        ends = np.searchsorted(self.ids, [part << SHARD_BITS, (part + 1) << SHARD_BITS])
        return self.lengths.get(part) == int(ends[1] - ends[0])


NOTHING = Stored(np.zeros(0, np.int64), {}, {})


class Indexed:
    """Samples that have numbers; a unit is a batch.

    Workers read at most two batches each ahead. They are processes, which the ``DataLoader`` of
    torch starts, for `Items` where torch is installed. Otherwise they are threads: taking rows of
    arrays needs no interpreter of its own, and processes would need copies of the arrays.

    Args:
        samples: The samples, whose number must not change.
        form: How batches are made.
        backend: Joins the ranks.

    Attributes:
        size: The number of samples to evaluate; None for a stream.
        units: The number of units; None if it is known at the end alone.
        by_cost: Whether units come by falling cost.
        waited: The seconds that the first batch of the last `read` was waited for, if there are
            workers.
    """

    def __init__(self, samples: Sized, form: Form, backend: BaseDistBackend) -> None:
        self._samples, self._form, self._backend = samples, form, backend
        self._length = len(samples)
        self.size = self._length if form.limit is None else min(self._length, form.limit)
        self._processes: ProcessLoader | None = None
        if form.workers and isinstance(samples, Items) and importlib.util.find_spec("torch"):
            from disteval.data.processes import ProcessLoader

            self._processes = ProcessLoader(samples, form.workers)
        self._lengths: npt.NDArray[np.int64] | None = None
        self.by_cost = form.by_length is not None
        self.units: int | None = None
        self.waited = 0.0

    def begin(self, stored: Stored) -> None:
        """Make units of the samples, without those that an earlier run has evaluated.

        Every rank must call it, for ranks may have to read the lengths of samples together.

        Raises:
            UsageError: On every rank, when the lengths of samples are not such.
            RankError: On every rank, when a rank could not read a length.
        """
        by = self._form.by_length
        if by is not None and self._lengths is None:
            self._lengths = gather_lengths(self._samples, self.size, by.length, self._backend)
        self._plan = Plan(
            self.size, self._form.batch_size, self._form.step, lengths=self._lengths,
            by_length=by, done=stored.ids,
        )  # fmt: skip
        self.units = len(self._plan)

    def read(self, units: Units) -> Generator[Batch, None, None]:
        """Yield the batches of some units; if it is closed before its end, no rank waits for it."""
        begin, self.waited, workers = time.perf_counter(), 0.0, self._form.workers
        picks = (self._plan.unit(unit, counts) for unit, counts in units)
        if self._processes is not None:
            coming = self._processes.load(picks)
        elif workers:
            reads = (partial(self._samples, picked) for picked in picks)
            coming = called_ahead(reads, workers, 2 * workers)
        else:
            coming = (self._samples(picked) for picked in picks)
        with closing(coming) as batches:
            for batch in batches:
                if workers and not self.waited:
                    self.waited = time.perf_counter() - begin
                yield batch
        if len(self._samples) != self._length:
            raise UsageError(
                f"the data set has {len(self._samples)} samples at the end, and had "
                f"{self._length} at the beginning; do not change it while it is evaluated"
            )

    def samples_of(self, units: Units) -> int:
        """Return how many samples some units have."""
        return sum(len(self._plan.unit(unit).indices) for unit, _ in units)

    def close(self) -> None:
        """End the workers."""
        if self._processes is not None:
            self._processes.close()


class Streamed:
    """Elements that have to be read one after another.

    Nothing is opened before the first batch is asked for. The global number of an element is its
    position in the stream; in a `ShardedStream`, see `SHARD_BITS`. A batch ends where a shard ends.

    Args:
        samples: The stream.
        form: How batches are made.
        world_size: The number of ranks that read it.
        is_own: Whether nobody else reads it, so that it is closed at the end.

    Attributes:
        sharded: The stream, if it has shards.
        lengths: The number of elements of each part that was read to its end, by its number.
        elements: The digests of all elements, where other ranks read the same ones.
    """

    size: int | None = None
    units: int | None = None

    def __init__(self, samples: Any, form: Form, world_size: int, *, is_own: bool = False) -> None:
        self._samples, self._form, self._world_size = samples, form, world_size
        self._is_own = is_own
        self.sharded = samples if isinstance(samples, ShardedStream) else None
        self._measure = None if form.by_length is None else form.by_length.measure()
        self.by_cost = form.by_length is not None
        self._stored = NOTHING
        self.lengths: dict[int, int] = {}
        self.elements: Elements | None = None
        self._last: Taken | None = None
        self._part = self._position = 0
        self._compares = is_switched_on(DIGESTS)

    def begin(self, stored: Stored) -> None:
        """Leave out what an earlier run has evaluated, see `Indexed`."""
        self._stored = stored

    def read(self, units: Units) -> Generator[Batch, None, None]:
        """Yield batches, see `Indexed`; with workers, a thread reads one ahead."""
        with closing(self._batches(units)) as batches:
            if not self._form.workers:
                yield from batches
                return
            with closing(called_ahead(repeat(partial(next, batches, None)), 1, 1)) as coming:
                yield from iter(partial(next, coming), None)

    def _batches(self, units: Units) -> Generator[Batch, None, None]:
        raise NotImplementedError

    def close(self) -> None:
        """Close the stream if it is not the user's."""
        if self._is_own and hasattr(self._samples, "close"):
            self._samples.close()

    def _cut(self, part: int, most: int) -> Generator[list[Taken], None, None]:
        """Yield the batches of a part, without what an earlier run has evaluated."""
        self._skipped: int | None = 0
        with closing(self._elements(part, most)) as elements:
            for taken in self._made(elements):
                if left := self._left(taken):
                    self._last = left[-1]
                    yield left
        known = self._stored.contents.get(part)
        if known is not None and self._skipped is not None and self._skipped != known:
            raise UsageError(
                f"the elements {f'of {self._place} ' * bool(self.sharded)}that an earlier run has "
                f"evaluated are others now; go on over the same stream, or begin anew in another "
                f"folder. Set {DIGESTS}=off if they differ in nothing that counts"
            )
        self.lengths[part] = self._position

    def _made(self, elements: Iterator[Taken]) -> Iterator[list[Taken]]:
        size, by = self._form.batch_size, self._form.by_length
        while window := list(islice(elements, size if by is None else WINDOW * size)):
            if by is None:
                yield window
                continue
            numbers = np.array([number for number, *_ in window])
            found = [length_of(each, number, self._measure) for number, each, _ in window]
            plan = Plan(
                len(window), size, lengths=np.array(found), by_length=by, numbers=numbers
            )  # fmt: skip
            for unit in range(len(plan)):
                yield [window[place] for place in plan.unit(unit).indices.tolist()]

    def _left(self, taken: list[Taken]) -> list[Taken]:
        ids = np.array([number for number, *_ in taken], np.int64)
        is_done = self._stored.has(ids)
        if not is_done.any():
            return taken
        again = [snapshot for (*_, snapshot), done in zip(taken, is_done, strict=True) if done]
        known = total(ids[is_done], hash_snapshots(again)) if all(again) else None
        self._skipped = add_contents(self._skipped, known)
        return [each for each, done in zip(taken, is_done, strict=True) if not done]

    def _elements(self, part: int, most: int) -> Generator[Taken, None, None]:
        self._part, self._position, first = part, 0, part << SHARD_BITS
        with self._opened() as elements:
            for element in islice(elements, most):
                number = first + self._position
                taken = snapshot(element) if self._compares else b""
                if self.elements is not None:
                    self.elements.add(number, taken)
                yield number, element, taken
                self._position += 1

    @contextmanager
    def _opened(self) -> Iterator[Iterator[Any]]:
        """Open a part of the stream, name the element that fails, and close what was opened."""
        shard = None
        try:
            if self.sharded is None:
                yield _iterator(self._samples, "samples")
            else:
                shard = self.sharded.open(self.sharded.shards[self._part])
                yield _iterator(shard, "open")
        except HarnessError:
            raise
        except Exception as error:
            what = f"of {self._place} could not be read: {describe_error(error)}"
            raise SampleError(self._position, what) from error
        finally:
            if shard is not None and hasattr(shard, "close"):
                shard.close()

    @property
    def described(self) -> str:
        """What ranks must agree on before they read the stream."""
        if self.sharded is None:
            return "a stream"
        return f"{len(self.sharded.shards)} shards {self.sharded.names}"

    @property
    def _place(self) -> str:
        if self.sharded is None:
            return "the stream"
        return f"the shard {str(self.sharded.shards[self._part])!r:.200}"


class WholeStream(Streamed):
    """A stream that every rank reads whole; a unit is a batch of it.

    See `Streamed`. With a limit, or where ranks have to call ``predict`` equally often, shards are
    read one after another by every rank.
    """

    def __init__(self, samples: Any, form: Form, world_size: int, *, is_own: bool = False) -> None:
        super().__init__(samples, form, world_size, is_own=is_own)
        self.elements = Elements() if world_size > 1 else None
        self._first: list[Taken] = []

    def first(self) -> list[Taken]:
        """Return the first elements, which every rank has read, if they are as they were then."""
        is_same = all(found and snapshot(each) == found for _, each, found in self._first)
        return self._first if is_same else []

    def _batches(self, units: Units) -> Generator[Batch, None, None]:
        mine, count = iter(units), 0
        wanted, _ = next(mine)
        for taken in self._all():
            if not count and self.elements is not None:
                self._first = taken[:FIRST]
            if count == wanted:
                yield self._form.assembled(taken, count)
                wanted, _ = next(mine)
            count += 1
        if self._form.even and wanted < -(-count // self._world_size) * self._world_size:
            assert self._last is not None
            yield self._form.assembled([self._last], count - 1, counts=False)

    def _all(self) -> Iterator[list[Taken]]:
        left = sys.maxsize if self._form.limit is None else self._form.limit
        for part in range(1 if self.sharded is None else len(self.sharded.shards)):
            with closing(self._cut(part, left)) as batches:
                yield from batches
            left -= self._position
            if not left:
                return


class Shards(Streamed):
    """A stream of shards, each of which one rank reads; a unit is a shard."""

    def __init__(self, samples: ShardedStream, form: Form, world_size: int) -> None:
        super().__init__(samples, form, world_size)
        self._shards = samples.shards
        self.by_cost = False

    def begin(self, stored: Stored) -> None:
        """Leave out what an earlier run has evaluated, see `Indexed`."""
        super().begin(stored)
        self._left_over = [i for i in range(len(self._shards)) if not stored.has_part(i)]
        self.units = len(self._left_over)

    def _batches(self, units: Units) -> Generator[Batch, None, None]:
        for unit, _ in units:
            with closing(self._cut(self._left_over[unit], sys.maxsize)) as batches:
                for taken in batches:
                    yield self._form.assembled(taken, unit)


Source = Indexed | Streamed
"""What yields the batches of an evaluation."""


def source_of(samples: Any, form: Form, world_size: int, *, in_step: bool) -> Streamed:
    """Return the source of a stream, or of a function that returns one.

    Args:
        samples: The stream.
        form: How batches are made.
        world_size: The number of ranks.
        in_step: Whether every rank has to know the number of batches, also of shards.

    Raises:
        UsageError: It yields batches.
    """
    is_function = callable(samples) and not hasattr(type(samples), "__iter__")
    stream = samples() if is_function else samples
    if getattr(stream, "batch_sampler", None) is not None:
        raise UsageError(
            f"samples is a {type(stream).__name__}, which yields batches, and evaluate makes "
            f"batches of samples itself; give its dataset, and its collate_fn as collate, or a "
            f"DataLoader with batch_size=None"
        )
    every_rank_reads_all = in_step or form.limit is not None
    if isinstance(stream, ShardedStream) and not every_rank_reads_all:
        return Shards(stream, form, world_size)
    return WholeStream(stream, form, world_size, is_own=is_function)


def _iterator(source: Any, function: str) -> Iterator[Any]:
    try:
        return iter(source)
    except TypeError:
        raise UsageError(
            f"the function {function} returned a value of type {type(source).__name__}; it must "
            f"return an iterable over the elements"
        ) from None


def called_ahead(
    calls: Iterable[Callable[[], Result]], threads: int, most: int
) -> Generator[Result, None, None]:
    """Yield what functions return, in their order; threads call some of them ahead.

    Args:
        calls: The functions.
        threads: The number of threads.
        most: The most functions that are called before the result of the one before is taken.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="disteval-loading") as pool:
        try:
            for call in calls:
                waiting.append(pool.submit(call))
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()
