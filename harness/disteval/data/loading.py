"""Reading batches ahead, while the model computes the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

from disteval.data.batching import Batch, Picked, Plan

Read = Callable[[Picked], Batch]
"""A function that reads the samples of a batch. With workers, it must not reuse its arrays."""


def load_ahead(plan: Plan, read: Read, workers: int = 0) -> Generator[Batch, None, None]:
    """Read the batches of a plan, in its order.

    Close the iterator (`contextlib.closing`) to end what reads ahead.

    Args:
        plan: The rank's batches.
        read: Reads one batch.
        workers: The number of workers that read ahead; 0 reads each batch when it is asked for.
    """
    if not workers:
        yield from map(read, plan)
        return
    yield from _with_threads(plan, read, workers)


def _with_threads(plan: Plan, read: Read, workers: int) -> Generator[Batch, None, None]:
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
