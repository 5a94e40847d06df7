"""Reading batches ahead, while the model computes the one before."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from disteval.data.plan import Batch, Picked
from disteval.data.samples import Items, Read

if TYPE_CHECKING:
    from disteval.data.processes import ProcessLoader

Result = TypeVar("Result")


class Loader:
    """Reads batches ahead, with the same processes from one list of them to the next; to be closed.

    At most two batches a worker are read ahead. Workers are processes, which the ``DataLoader`` of
    torch starts, for `Items` where torch is installed. Otherwise they are threads:
    taking rows of arrays needs no interpreter of its own, and processes would need copies of the
    arrays.

    Args:
        read: Reads one batch.
        workers: The number of workers that read ahead; 0 reads each batch when it is asked for.
    """

    def __init__(self, read: Read, workers: int = 0) -> None:
        self._read, self._workers = read, workers
        self._processes: ProcessLoader | None = None
        if workers and isinstance(read, Items) and importlib.util.find_spec("torch"):
            from disteval.data.processes import ProcessLoader

            self._processes = ProcessLoader(read, workers)

    def load(self, picks: Iterable[Picked]) -> Generator[Batch, None, None]:
        """Yield the batches that were picked, in their order."""
        if self._processes is not None:
            yield from self._processes.load(picks)
        elif self._workers:
            reads = (partial(self._read, picked) for picked in picks)
            yield from called_ahead(reads, self._workers, 2 * self._workers)
        else:
            yield from map(self._read, picks)

    def close(self) -> None:
        """End the workers."""
        if self._processes is not None:
            self._processes.close()


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
