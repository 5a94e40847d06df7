"""The recorder of one rank: events in memory, which a thread writes to the rank's file.

The file is in the JSON array form of the Trace Event Format, where the closing bracket may be
missing. So it is read also if the rank was killed: it lacks the events of the last moment.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from disteval.arguments import unwritable
from disteval.errors import UsageError
from disteval.traces.folder import file_name
from disteval.traces.lines import as_json, in_utf8, line_of
from disteval.traces.place import Place, own_clock, own_wall

P = ParamSpec("P")
T = TypeVar("T")

VERSION = 1
HEADER, END = "disteval", "disteval_end"
"""The names of the metadata events with which a file begins and ends."""

_FLUSH_SECONDS = 0.5
_MOST_WAITING = 2_000  # events in memory; a rank that records faster writes them itself
_MOST_BYTES = 1 << 27  # of a file; the events after them are counted, as those past the cap
_MOST_ARGUMENTS = 16
_ATTEMPTS = 1_000

_log = logging.getLogger("disteval.traces")

Event = tuple[str, int, int, Sequence[Any]]
"""A line of `line_of`, start and end in nanoseconds of this process's clock, values."""

Record = Callable[..., None]
"""Records one event: start and end as for `Recorder.add`, and a value for each argument."""

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
        self._place, self._rank = place, rank
        self._offset = place.offset_of(rank)
        self._zero = place.begin - self._offset.nanoseconds
        self._waiting: deque[Event] = deque()
        self._left, self._room = place.cap, _MOST_BYTES
        self._dropped = 0
        self._lock = threading.Lock()
        self._file: BinaryIO | None = self._create()
        self._row = {"pid": place.world, "tid": 1 if rank is None else rank + 2}
        self._row_text = f'"ph":"X","pid":{self._row["pid"]},"tid":{self._row["tid"]}'
        self._write_header()
        open_recorders.add(self)
        _flusher.start()

    def _create(self) -> BinaryIO | None:
        folder = Path(self._place.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, _ATTEMPTS):  # a rank that was lost may be started again
                with suppress(FileExistsError):
                    path = folder / file_name(self._place.world, self._rank, attempt)
                    return path.open("xb", buffering=0)
        except OSError as error:
            if self._place.world == 1:
                raise unwritable("the trace's folder", folder, error) from error
            _log.warning("%s; this row of the trace is not recorded", error)  # work is under way
            return None
        raise UsageError(f"{folder} has {_ATTEMPTS} files of one rank; give an empty folder")

    def _write_header(self) -> None:
        place, offset = self._place, self._offset
        row = "leader" if self._rank is None else f"rank {self._rank}"
        about = {
            "version": VERSION,
            "run": place.run,
            "world": place.world,
            "title": place.title,
            "rank": self._rank,
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
        lines = [
            self._metadata("process_name", {"name": f"world {place.world} {place.title}".strip()}),
            self._metadata("thread_name", {"name": row}),
            self._metadata("thread_sort_index", {"sort_index": self._row["tid"]}),
            self._metadata(HEADER, about),
        ]
        self._write("[\n" + ",\n".join(lines))

    def _metadata(self, name: str, about: dict[str, Any]) -> str:
        return in_utf8({"name": name, "ph": "M", **self._row, "args": about}).decode()

    def add(self, category: str, name: str, start_ns: int, end_ns: int, **arguments: Any) -> None:
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
        names = [*arguments][:_MOST_ARGUMENTS]
        line = line_of(self._row_text, category, name, *names)
        self._add(line, start_ns, end_ns, [arguments[name] for name in names])

    def series(self, category: str, name: str, *names: str) -> Record:
        """Return a function that records events which differ in their times and values alone.

        A call of it takes a third of the time of `add`.

        Args:
            category: As for `add`, and so is ``name``.
            name: What takes place each time.
            *names: The names of the arguments, whose values the function takes in this order.
        """
        line = line_of(self._row_text, category, name, *names)

        def record(start_ns: int, end_ns: int, *values: Any) -> None:
            self._add(line, start_ns, end_ns, values)

        return record

    def _add(self, line: str, start_ns: int, end_ns: int, values: Sequence[Any]) -> None:
        if self._left <= 0:
            self._dropped += 1
            return
        self._left -= 1
        self._waiting.append((line, start_ns, end_ns, values))
        if len(self._waiting) >= _MOST_WAITING:
            self.flush()

    def span(self, category: str, name: str, **arguments: Any) -> AbstractContextManager[None]:
        """Return a context that records the time that its block takes, also if it raises."""
        return _Span(self, (category, name), arguments)

    def timed(self, function: Callable[P, T], category: str, name: str) -> Callable[P, T]:
        """Return a function that records each of its calls."""
        record = self.series(category, name)

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = time.monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                record(begin, time.monotonic_ns())

        return call

    def loading(self, batches: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
        """Yield batches, and record how long each is waited for, and the samples in it."""
        record = self.series("data", "load", "samples")
        begin = time.monotonic_ns()
        for batch in batches:
            record(begin, time.monotonic_ns(), size(batch))
            yield batch
            begin = time.monotonic_ns()
        record(begin, time.monotonic_ns(), 0)  # there are no more

    def flush(self) -> None:
        """Write the events so far to the file; any thread may call it."""
        with self._lock:
            while self._waiting:
                count = min(len(self._waiting), _MOST_WAITING)
                events = [self._waiting.popleft() for _ in range(count)]
                self._write("".join(self._lines(events)))

    def _lines(self, events: Iterable[Event]) -> Iterator[str]:
        for line, start, end, values in events:
            try:
                shown = [value if type(value) is int else as_json(value) for value in values]
                yield line % (start - self._zero, max(end - start, 0), *shown)
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
            self._write(",\n" + self._metadata(END, {"dropped": self._dropped}) + "\n]\n")
            try:
                if self._file is not None:
                    self._file.close()
                    self._file = None
            except OSError as error:  # file systems with quotas, or of other hosts, may say it late
                self._give_up(error)


class _Span:
    """Records the time that a block takes."""

    def __init__(self, recorder: Recorder, what: tuple[str, str], arguments: dict[str, Any]):
        self._recorder, self._what, self._arguments = recorder, what, arguments

    def __enter__(self) -> None:
        self._begin = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._recorder.add(*self._what, self._begin, time.monotonic_ns(), **self._arguments)


class _Flusher:
    """A thread that writes the events of all recorders of this process twice a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = False

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="disteval-trace", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_FLUSH_SECONDS)
            for recorder in [*open_recorders]:
                recorder.flush()
            with self._lock:
                if not open_recorders:
                    self._runs = False
                    return


_flusher = _Flusher()


def _forget() -> None:
    """Have a fork of a rank record nothing: it is not the rank, and shares the rank's file."""
    global _flusher
    _flusher = _Flusher()
    for recorder in open_recorders:
        recorder._file, recorder._lock = None, threading.Lock()
    open_recorders.clear()


os.register_at_fork(after_in_child=_forget)
