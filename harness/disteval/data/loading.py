"""Reading batches ahead, while the model computes the one before."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from disteval.data.plan import Batch, Picked
from disteval.data.samples import Items, Read

if TYPE_CHECKING:
    from disteval.data.processes import ProcessLoader


class Loader:
    """Reads batches ahead, with the same workers from one list of them to the next; to be closed.

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
        self._pool: ThreadPoolExecutor | None = None
        self._processes: ProcessLoader | None = None
        if workers and isinstance(read, Items) and importlib.util.find_spec("torch"):
            from disteval.data.processes import ProcessLoader

            self._processes = ProcessLoader(read, workers)
        elif workers:
            self._pool = ThreadPoolExecutor(workers, thread_name_prefix="disteval-loading")

    def load(self, picks: Iterable[Picked]) -> Generator[Batch, None, None]:
        """Yield the batches that were picked, in their order."""
        if self._processes is not None:
            yield from self._processes.load(picks)
        elif self._pool is not None:
            yield from self._load_with_threads(picks, self._pool)
        else:
            yield from map(self._read, picks)

    def close(self) -> None:
        """End the workers."""
        if self._processes is not None:
            self._processes.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _load_with_threads(
        self, picks: Iterable[Picked], pool: ThreadPoolExecutor
    ) -> Generator[Batch, None, None]:
        waiting: deque[Future[Batch]] = deque()
        try:
            for picked in picks:
                waiting.append(pool.submit(self._read, picked))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()
