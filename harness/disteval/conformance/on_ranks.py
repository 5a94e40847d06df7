"""The functions that ranks run in checks; none of them draws examples or decides."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disteval.conformance.fingerprint import Gathered, digest
from disteval.conformance.world import identity_of
from disteval.conformance.wrong import MOST_BYTES, Wrong, wrong_of
from disteval.contract import BaseDistBackend
from disteval.metrics.accuracy import Accuracy
from disteval.metrics.base import BaseMetric
from disteval.sharding import ShardPlan
from disteval.world import report_progress, send_note
from disteval.world.collective_log import LoggedBackend

Step = tuple[Any, int | None, float]
"""This rank's object, the source of a broadcast or None, and the seconds to wait before."""


class Sample:
    """A class of a user's own, which pickles by its attributes."""

    def __init__(self, index: int, scores: Any) -> None:
        self.index = index
        self.scores = scores

    def __repr__(self) -> str:
        return f"Sample({self.index}, {self.scores!r})"


class Payload(NamedTuple):
    """A number of bytes that a rank makes itself, see `payload`."""

    size: int
    owner: int | None = None


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


def compare(
    function: Callable[[BaseDistBackend, Any], list[Any]],
    backend: BaseDistBackend,
    tasks: list[tuple[Any, list[str]]],
) -> dict[int, Wrong]:
    """Run a function with the argument of each task, and compare its results with the digests.

    Returns:
        The results that differ, and changed arguments, by the number of the task.
    """
    wrong: dict[int, Wrong] = {}
    left = MOST_BYTES
    for number, (argument, digests) in enumerate(tasks):
        before = digest(argument)
        results = function(backend, argument)
        changed = digest(argument) != before  # of all functions here, none does that itself
        if changed or [digest(result) for result in results] != digests:
            wrong[number] = wrong_of(results, argument, changed, left)
            left -= len(wrong[number].results)
            send_note(number)  # the ranks may hang in the next one
        report_progress(number + 1, len(tasks))
    return wrong


def gather_once(backend: BaseDistBackend) -> list[int]:
    """Gather the numbers of the ranks."""
    return backend.all_gather_object(backend.rank)


@lru_cache(16)
def payload(size: int, owner: int | None = None) -> bytes:
    """Return bytes of that length that any truncation and any stripping of zeros changes.

    The bytes of an owner are words of 4 bytes that say whose they are and where they belong.
    """
    if owner is not None:
        words = np.arange(-(-size // 4), dtype="<u4") + np.uint32(owner % 256 << 24)
        return bytes(words.data.cast("B")[:size])
    return bytes(range(1, 252)) * (size // 251) + bytes(size % 251)


def broadcast_beside_junk(backend: BaseDistBackend, src: int) -> list[Any]:
    """Broadcast while the other ranks pass an object that can't be pickled, or a larger one."""
    junk = CannotBePickled() if backend.rank % 2 else bytes(100_000)
    return [backend.broadcast_object("sent" if backend.rank == src else junk, src)]


def broadcast_from_nowhere(backend: BaseDistBackend, src: int) -> list[Any]:
    """Return whether a broadcast from no rank raised an error, and the next result."""
    return [
        raises(backend.broadcast_object, 0, src),
        backend.all_gather_object((src, backend.rank)),
    ]


def raises(call: Callable[..., Any], *args: Any) -> bool:
    """Return whether a call raises an exception, of any kind."""
    try:
        call(*args)
    except Exception:  # the contract asks for an error of any class
        return True
    return False


def gather_and_identify(backend: BaseDistBackend, calls: int) -> list[Any]:
    """Return the rank and the world size after each of so many all-gathers."""
    identities = []
    for call in range(calls):
        backend.all_gather_object(call)
        identities.append(identity_of(backend))
    return identities


def sequence(backend: BaseDistBackend, steps: list[Step]) -> list[Any]:
    """Call collectives one after another, some late.

    Returns:
        The results of all of them, which later calls must not have changed.
    """
    results: list[tuple[bool, Any]] = []
    for obj, src, delay in steps:
        mine = payload(*obj) if isinstance(obj, Payload) else obj
        if delay:
            time.sleep(delay)
        if src is None:
            gathered = backend.all_gather_object(mine)
            if type(gathered) is not list:
                kind = type(gathered).__name__
                raise TypeError(f"all_gather_object returned a {kind}, not a list")
            results.append((True, gathered))
        else:
            results.append((False, backend.broadcast_object(mine, src)))
    return [Gathered(result) if many else result for many, result in results]


def use_several_objects(backend: LoggedBackend, src: int) -> list[Any]:
    """Return results of one object, then of three, one created later, and their identities."""
    results: list[Any] = [backend.all_gather_object((call, backend.rank)) for call in range(3)]
    results += [backend.broadcast_object((call, backend.rank), src) for call in range(3)]
    objects: list[BaseDistBackend] = [backend, type(backend.inner)()]
    for turn in range(4):
        if turn == 2:
            objects.append(type(backend.inner)())
        sent = [(turn, index, backend.rank) for index in range(len(objects))]
        results += [o.all_gather_object(mine) for o, mine in zip(objects, sent, strict=True)]
        results += [o.broadcast_object(mine, src) for o, mine in zip(objects, sent, strict=True)]
    results.append([identity_of(each)[1:] for each in objects])
    return results


def resources(backend: BaseDistBackend, calls: int) -> tuple[int, int, int]:
    """Return file descriptors, threads and resident bytes after so many more calls."""
    for call in range(calls):
        backend.all_gather_object([call, b"x" * 200_000])
        backend.broadcast_object(call, call % backend.world_size)
    gc.collect()
    if not Path("/proc/self/statm").exists():
        return 0, threading.active_count(), 0
    files, threads = (len([*Path("/proc/self", kind).iterdir()]) for kind in ("fd", "task"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return files, threads, pages * os.sysconf("SC_PAGE_SIZE")


class _Indices(BaseMetric):
    """A metric whose result is the list of counted samples."""

    def add(self, indices: Any) -> None:
        self._results.extend(int(index) for index in indices)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


def count_samples(backend: BaseDistBackend, task: tuple[int, str, bool, int]) -> list[Any]:
    """Count the samples of a data set with metrics over this backend, batch by batch."""
    size, mode, pad, batch_size = task
    collect = "unzip" if mode == "strided" else "cat"
    plan = ShardPlan(size, backend.world_size, backend.rank, mode, pad)  # type: ignore[arg-type]
    common: dict[str, Any] = {"dist_collect_mode": collect, "dist_backend": backend}
    indices = _Indices(**common)
    accuracy = Accuracy((1, 2), counts=True, **common)
    for start in range(0, len(plan), batch_size):
        batch = plan.indices[start : start + batch_size]
        indices.add(batch)
        accuracy.add(*scores_and_labels(batch))
    return [indices.compute(size), accuracy.compute(size) if size else None]


def scores_and_labels(indices: Any) -> tuple[Any, Any]:
    """Return scores over four classes that are right, second or wrong for different samples."""
    labels = indices % 4
    scores = np.zeros((len(indices), 4))
    scores[np.arange(len(indices)), (labels + (indices % 3 == 0)) % 4] = 2
    scores[np.arange(len(indices)), (labels + (indices % 5 == 0)) % 4] += 1
    return scores, labels
