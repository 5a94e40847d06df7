"""The recorder of a rank, and of the rank that this thread is: events that go to the rank's file.

The first line of a file says what it is, each other one is an event, and the last one says that the
rank has ended. So the file is read also if the rank was killed: it lacks the events of the last
moment.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from disteval.arguments import unwritable
from disteval.errors import UsageError
from disteval.launched import launched_job
from disteval.traces.folder import Place, category_of, file_name, own_clock, own_wall

P = ParamSpec("P")
T = TypeVar("T")

VERSION = 2

_FLUSH_NANOSECONDS = 500_000_000  # between the ends of events after which they are written
_MOST_WAITING = 2_000  # events in memory
_MOST_BYTES = 1 << 27  # of a file; the events after them are counted, as those past the cap
_MOST_TEXT = 200  # characters of a name or of the value of an argument
_MOST_ARGUMENTS = 16
_ATTEMPTS = 1_000

_log = logging.getLogger("disteval.traces")

open_recorders: set[Recorder] = set()
"""The recorders of this process; empty while no trace is on, which is all that hooks look at."""


class Recorder:
    """Records what one rank does, from one thread.

    Args:
        place: Where the trace is written.
        rank: The number of the rank; None stands for the leader.

    Raises:
        UsageError: The file can't be written.

    Attributes:
        bytes: The bytes that this rank sends in the present collective, as far as is known.
        group: The number of the backend's group that the rank is in, counted from 1.
    """

    def __init__(self, place: Place, rank: int | None) -> None:
        self.bytes = 0
        self.group = 0
        offset = place.offset_of(rank)
        self._zero = place.begin - offset.nanoseconds
        self._waiting: deque[tuple[str, str, int, int, dict[str, Any]]] = deque()
        self._due = 0
        self._left, self._room = place.cap, _MOST_BYTES
        self._dropped = 0
        self._lock = threading.Lock()
        self._file = _create(place, rank)
        about = {
            "version": VERSION,
            "run": place.run,
            "world": place.world,
            "title": place.title,
            "rank": rank,
            "world_size": place.world_size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "begin_ns": place.begin,
            "offset_ns": offset.nanoseconds,
            "offset_error_ns": offset.error,
            "offset_from": offset.how,
            "clock": own_clock(),
            "wall_ns": own_wall(),
        }
        self._write(json.dumps(about) + "\n")
        open_recorders.add(self)

    def add(
        self, category: str, name: str, start_ns: int, end_ns: int, /, **arguments: Any
    ) -> None:
        """Record what has taken place between two times of `time.monotonic_ns`.

        Args:
            category: ``data``, ``compute``, ``metric``, ``collective``, ``waiting`` or ``start``;
                time in another one, such as ``order`` or ``lease``, is counted as other time.
            name: What has taken place.
            start_ns: When it began.
            end_ns: When it ended.
            **arguments: Numbers and short texts. A collective has its ``number``, its ``group``,
                and its ``root``, which is None where it has none.
        """
        if self._left <= 0:
            self._dropped += 1
            return
        self._left -= 1
        self._waiting.append((category, name, start_ns, end_ns, arguments))
        if end_ns >= self._due or len(self._waiting) >= _MOST_WAITING:
            self._due = end_ns + _FLUSH_NANOSECONDS
            self.flush()

    @contextmanager
    def span(self, category: str, name: str, /, **arguments: Any) -> Iterator[None]:
        """Record the time that a block takes, also if it raises."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(category, name, begin, time.monotonic_ns(), **arguments)

    def timed(self, function: Callable[P, T], category: str, name: str) -> Callable[P, T]:
        """Return a function that records each of its calls."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.span(category, name):
                return function(*args, **kwargs)

        return call

    def loading(self, batches: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
        """Yield batches, and record how long each is waited for, and the samples in it."""
        begin = time.monotonic_ns()
        for batch in batches:
            self.add("data", "load", begin, time.monotonic_ns(), samples=size(batch))
            yield batch
            begin = time.monotonic_ns()
        self.add("data", "load", begin, time.monotonic_ns(), samples=0)  # there are no more

    def flush(self) -> None:
        """Write the events so far to the file; any thread may call it."""
        with self._lock:
            events = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._write("".join(self._lines(events)))

    def _lines(self, events: Iterable[tuple[str, str, int, int, dict[str, Any]]]) -> Iterator[str]:
        for category, name, start, end, arguments in events:
            try:
                shown = {key: _plain(arguments[key]) for key in [*arguments][:_MOST_ARGUMENTS]}
                begin, duration = start - self._zero, max(end - start, 0)
                event = category[:_MOST_TEXT], name[:_MOST_TEXT], begin, duration, shown
                yield json.dumps(event) + "\n"
            except Exception:  # a value that can't be text; nothing else should end by it
                self._dropped += 1

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            data = memoryview(text.encode())
            self._room -= len(data)
            if self._room < 0:
                self._left = 0
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:  # a full disk should not end an evaluation
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s; the trace of this rank ends here", error)
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()

    def close(self) -> None:
        """Write the end of the file; closing it twice is fine."""
        open_recorders.discard(self)
        self.flush()
        with self._lock:
            self._write(json.dumps({"dropped": self._dropped}) + "\n")
            try:
                if self._file is not None:
                    self._file.close()
                    self._file = None
            except OSError as error:  # file systems with quotas, or of other hosts, may say it late
                self._give_up(error)


def flush_all() -> None:
    """Write what this process has recorded so far; any thread may call it."""
    for recorder in [*open_recorders]:
        recorder.flush()


def _create(place: Place, rank: int | None) -> BinaryIO | None:
    folder = Path(place.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS):  # a rank that was lost may be started again
            with suppress(FileExistsError):
                return (folder / file_name(place.world, rank, attempt)).open("xb", buffering=0)
    except OSError as error:
        if place.world == 1:
            raise unwritable("the trace's folder", folder, error) from error
        _log.warning("%s; this row of the trace is not recorded", error)  # work is under way
        return None
    raise UsageError(f"{folder} has {_ATTEMPTS} files of one rank; give an empty folder")


def _plain(value: Any) -> Any:
    """Return a value that JSON has; what it lacks becomes text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)[:_MOST_TEXT]


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
        _log.warning("%s; this rank records no trace", error)
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
    """Have a fork of a rank record nothing: it is not the rank, and shares the rank's file."""
    for recorder in open_recorders:
        recorder._file, recorder._lock = None, threading.Lock()
    open_recorders.clear()
    _here.recorder = None


os.register_at_fork(after_in_child=_forget)
