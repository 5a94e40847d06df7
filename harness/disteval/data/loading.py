"""Reading batches ahead, while the model computes the one before."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

from disteval.data.batching import Batch, Picked, Plan
from disteval.data.collate import IndexedReader

Read = Callable[[Picked], Batch]
"""A function that reads the samples of a batch. With workers, it must not reuse its arrays."""


def load_ahead(plan: Plan, read: Read, workers: int = 0) -> Generator[Batch, None, None]:
    """Read the batches of a plan, in its order.

    At most two batches a worker are read ahead. Close the iterator (`contextlib.closing`) to end
    the workers. They are processes, which the ``DataLoader`` of torch starts, for an
    `IndexedReader` where torch is installed. Otherwise they are threads: taking rows of arrays
    needs no interpreter of its own, and processes would need copies of the arrays.

    Args:
        plan: The rank's batches.
        read: Reads one batch.
        workers: The number of workers that read ahead; 0 reads each batch when it is asked for.
    """
    if not workers:
        yield from map(read, plan)
    elif isinstance(read, IndexedReader) and importlib.util.find_spec("torch"):
        from disteval.data.processes import load_with_processes

        yield from load_with_processes(plan, read, workers)
    else:
        yield from _load_with_threads(plan, read, workers)


def _load_with_threads(plan: Plan, read: Read, workers: int) -> Generator[Batch, None, None]:
    waiting: deque[Future[Batch]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="disteval-loading")
    try:
        for picked in plan:
            waiting.append(pool.submit(read, picked))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
