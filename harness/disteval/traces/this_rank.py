"""The recorder of the rank that this thread is, and what is recorded with it."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from disteval.errors import UsageError
from disteval.launched import launched_job
from disteval.traces.folder import Place, category_of, file_name, own_clock, own_wall
from disteval.traces.recorder import Recorder

T = TypeVar("T")


class _Here(threading.local):
    recorder: Recorder | None = None


_here = _Here()


def current() -> Recorder | None:
    """Return the recorder of the rank that this thread is; None while no trace is on."""
    return _here.recorder


def span(category: str, name: str, **arguments: Any) -> AbstractContextManager[None]:
    """Return a context that records the time of its block, if this thread records a trace."""
    recorder = current()
    if recorder is None:
        return nullcontext()
    return recorder.span(category, name, **arguments)


def loading(batches: Iterable[T], size: Callable[[T], int] = lambda batch: 0) -> Iterable[T]:
    """Return batches that are recorded when they are loaded, if this thread records a trace.

    Args:
        batches: The batches of this rank.
        size: Returns the number of samples in a batch, where it is known.
    """
    recorder = current()
    return batches if recorder is None else recorder.loading(batches, size)


def start(place: Place, rank: int) -> Recorder:
    """Begin to record what this thread does as a rank, and return the recorder.

    Raises:
        UsageError: The file can't be written.
    """
    stop()
    _here.recorder = Recorder(place, rank)
    return _here.recorder


def start_with(place: bytes, rank: int, order: str) -> Recorder | None:
    """Begin to record with the first order of this thread, whose pickled place came with it.

    Returns:
        The recorder of this thread, which later orders have too; None if its file can't be written.

    Raises:
        UsageError: The file can't be written, and nothing is evaluated yet.
    """
    if _here.recorder is not None:
        return _here.recorder
    try:
        return start(pickle.loads(place), rank)
    except UsageError as error:
        if category_of(order) == "start":
            raise
        # Such as that of a rank that comes later, when the disk is full.
        logging.getLogger("disteval.traces").warning("%s; this rank records no trace", error)
        return None


def stop() -> None:
    """Close this thread's recorder, if there is one."""
    recorder, _here.recorder = _here.recorder, None
    if recorder is not None:
        recorder.close()


def note_bytes(count: int) -> None:
    """Say how many bytes the present collective of this rank carries, if it is recorded."""
    if _here.recorder is not None:
        _here.recorder.bytes = count


@contextmanager
def recording(folder: str | Path, rank: int | None = None) -> Iterator[Recorder]:
    """Record what this process does as a rank, as long as the block runs.

    Call it on every rank with the same folder, around `disteval.evaluate` or a loop of your own.
    Ranks of a `disteval.world.World` get their recorders from its argument ``trace``.

    Args:
        folder: The folder of the trace, in which no rank of that number has a file yet.
        rank: The number of this rank; None takes that of the launcher, or 0.

    Raises:
        UsageError: The folder holds a file of this rank, or can't be written.
    """
    job = launched_job()
    if rank is None:
        rank = 0 if job is None else job.rank
    path = Path(folder).absolute()
    if (there := path / file_name(1, rank)).exists():
        raise UsageError(f"{there} is there already; give another folder, or remove it")
    size = 1 if job is None else job.world_size
    place = Place(str(path), world_size=size, clock=own_clock(), wall=own_wall())
    recorder = start(place, rank)
    try:
        yield recorder
    finally:
        if _here.recorder is recorder:
            stop()


def _forget() -> None:
    """Have a fork of a rank record nothing: it is not the rank."""
    _here.recorder = None


os.register_at_fork(after_in_child=_forget)
