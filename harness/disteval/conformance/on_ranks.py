"""The functions that ranks run in checks; none of them draws examples or decides."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from disteval.conformance.fingerprint import Seen, see
from disteval.contract import BaseDistBackend
from disteval.metrics.accuracy import Accuracy
from disteval.metrics.base import BaseMetric
from disteval.sharding import ShardPlan
from disteval.worlds.collective_log import LoggedBackend

Step = tuple[str, Any, int, float]
"""``gather`` or ``broadcast``, this rank's object, the source, and the seconds to wait before."""


class Sample:
    """A class of a user's own, which pickles by its attributes."""

    def __init__(self, index: int, scores: Any) -> None:
        self.index = index
        self.scores = scores

    def __repr__(self) -> str:
        return f"Sample({self.index}, {self.scores!r})"


class CannotBePickled:
    """An object that no rank can send."""

    def __reduce__(self) -> Any:
        raise TypeError("this object can't be pickled")


class CannotBeUnpickled:
    """An object that every rank can send and no rank can receive."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("this object can't be unpickled")


def gather(backend: BaseDistBackend, obj: Any) -> list[Seen]:
    """Return the result of one all-gather."""
    gathered = backend.all_gather_object(obj)
    if type(gathered) is not list:
        raise TypeError(f"all_gather_object returned a {type(gathered).__name__}, not a list")
    return [see(item) for item in gathered]


def gather_bytes(backend: BaseDistBackend, size: int) -> list[Seen]:
    """Return the result of an all-gather of a `payload` of that size."""
    return gather(backend, payload(size))


def payload(size: int) -> bytes:
    """Return bytes of that length that any truncation and any stripping of zeros changes."""
    return bytes(range(1, 252)) * (size // 251) + bytes(size % 251)


def broadcast(backend: BaseDistBackend, task: tuple[Any, int]) -> Seen:
    """Return the result of one broadcast."""
    obj, src = task
    return see(backend.broadcast_object(obj, src))


def broadcast_bytes(backend: BaseDistBackend, task: tuple[int, int]) -> Seen:
    """Return the result of a broadcast of a `payload` of that size."""
    size, src = task
    return see(backend.broadcast_object(payload(size), src))


def broadcast_beside_junk(backend: BaseDistBackend, src: int) -> Seen:
    """Broadcast while the other ranks pass an object that can't be pickled, or a larger one."""
    junk = CannotBePickled() if backend.rank % 2 else bytes(100_000)
    return see(backend.broadcast_object("sent" if backend.rank == src else junk, src))


def broadcast_from_nowhere(backend: BaseDistBackend, src: int) -> tuple[bool, Seen]:
    """Return whether a broadcast from no rank raised an error, and the next result."""
    return raises(backend.broadcast_object, 0, src), see(backend.all_gather_object(backend.rank))


def raises(call: Callable[..., Any], *args: Any) -> bool:
    """Return whether a call raises an exception, of any kind."""
    try:
        call(*args)
    except Exception:  # the contract asks for an error of any class
        return True
    return False


_kept: WeakKeyDictionary[BaseDistBackend, list[Any]] = WeakKeyDictionary()


def sequence(backend: BaseDistBackend, task: tuple[bool, list[Step]]) -> list[Seen | list[Seen]]:
    """Call collectives one after another, some late, without an answer to the leader in between.

    Args:
        backend: The backend under test.
        task: Whether a new sequence begins, which deletes earlier results, and the steps.

    Returns:
        All results of the sequence so far; later calls must not have changed them.
    """
    begins, steps = task
    if begins:
        _kept[backend] = []
    kept = _kept[backend]
    for kind, obj, src, delay in steps:
        if delay:
            time.sleep(delay)
        if kind == "gather":
            kept.append((True, backend.all_gather_object(obj)))
        else:
            kept.append((False, backend.broadcast_object(obj, src)))
    return [[see(item) for item in result] if many else see(result) for many, result in kept]


def use_several_objects(backend: LoggedBackend, src: int) -> list[Seen]:
    """Call collectives of three backend objects in turn; the third is created in between.

    Returns:
        The result of each call, and at the end the rank and world size of each object.
    """
    objects: list[BaseDistBackend] = [backend, type(backend.inner)()]
    results: list[Any] = []
    for turn in range(4):
        if turn == 2:
            objects.append(type(backend.inner)())
        sent = [(turn, index, backend.rank) for index in range(len(objects))]
        results += [o.all_gather_object(mine) for o, mine in zip(objects, sent, strict=True)]
        results += [o.broadcast_object(mine, src) for o, mine in zip(objects, sent, strict=True)]
    results.append([(each.rank, each.world_size) for each in objects])
    return [see(result) for result in results]


def resources(backend: BaseDistBackend, calls: int) -> tuple[int, int, int]:
    """Return file descriptors, threads and resident bytes after so many more calls."""
    for call in range(calls):
        backend.all_gather_object([call, b"x" * 1000])
        backend.broadcast_object(call, call % backend.world_size)
    gc.collect()
    return _open_files(), _threads(), _resident_bytes()


def _open_files() -> int:
    open_now = Path("/proc/self/fd")
    return len(list(open_now.iterdir())) if open_now.is_dir() else 0


def _threads() -> int:
    """Count the threads of this process, including those that a library has started."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class _Indices(BaseMetric):
    """A metric whose result is the list of counted samples."""

    def add(self, indices: Any) -> None:
        self._results.extend(int(index) for index in indices)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


def count_samples(backend: BaseDistBackend, task: tuple[int, str, bool, int]) -> Seen:
    """Count the samples of a data set with metrics over this backend, batch by batch."""
    size, mode, pad, batch_size = task
    collect = "unzip" if mode == "strided" else "cat"
    plan = ShardPlan(size, backend.world_size, backend.rank, mode, pad)  # type: ignore[arg-type]
    indices = _Indices(None, collect, backend)  # type: ignore[arg-type]
    accuracy = Accuracy((1, 2), None, None, collect, backend, counts=True)  # type: ignore[arg-type]
    for start in range(0, len(plan), batch_size):
        batch = plan.indices[start : start + batch_size]
        indices.add(batch)
        accuracy.add(*scores_and_labels(batch))
    return see((indices.compute(size), accuracy.compute(size) if size else None))


def scores_and_labels(indices: Any) -> tuple[Any, Any]:
    """Return scores over four classes that are right, second or wrong for different samples."""
    labels = indices % 4
    scores = np.zeros((len(indices), 4))
    scores[np.arange(len(indices)), (labels + (indices % 3 == 0)) % 4] = 2
    scores[np.arange(len(indices)), (labels + (indices % 5 == 0)) % 4] += 1
    return scores, labels
