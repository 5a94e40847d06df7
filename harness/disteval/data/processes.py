"""Reading batches ahead with the worker processes of torch's ``DataLoader``."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import cloudpickle
import numpy as np
import torch
from torch.utils.data import DataLoader

from disteval.by_sample import seed_all
from disteval.by_value import Pickler
from disteval.data.plan import Batch, Picked
from disteval.errors import HarnessError, UsageError, describe_error

_LARGE = 1 << 16  # bytes from which on an array is worth shared memory

_starting = threading.Lock()


class ProcessLoader:
    """Reads batches with worker processes; see `disteval.data.sources.Indexed`.

    Raises:
        UsageError: The samples or ``collate`` can't be sent between processes.
    """

    def __init__(self, read: Callable[[Picked], Batch], workers: int) -> None:
        self._picks: Iterable[Picked] = ()
        self._workers = workers
        self._loader = DataLoader(
            _Reader(_pickled(read)),
            batch_size=None,
            sampler=self,
            num_workers=workers,
            persistent_workers=True,
            collate_fn=_unchanged,
            worker_init_fn=_end_with_parent,
            # A process that is forked from a rank would share the rank's connections.
            multiprocessing_context="spawn",
            generator=torch.Generator(),  # leaves the caller's random numbers alone
        )
        self._batches: Any = None

    def __iter__(self) -> Iterator[Picked]:
        """Return what is read at present, as a sampler does."""
        return iter(self._picks)

    def load(self, picks: Iterable[Picked]) -> Generator[Batch, None, None]:
        """Yield the batches that were picked, in their order.

        Raises:
            UsageError: A batch can't be sent between processes.
            HarnessError: A worker was killed.
            Exception: The error of ``read`` in a worker.
        """
        self._picks = picks
        with _without_main_script():
            self._batches = iter(self._loader)
        while True:
            try:
                sent = next(self._batches, None)
                # The memory of a tensor comes from the worker, which can have ended since.
                found = sent.opened() if isinstance(sent, _Sent) else None
            except (RuntimeError, OSError, EOFError) as error:
                raise HarnessError(
                    f"a worker process that reads samples ended: {describe_error(error)}; see what "
                    f"it printed, and whether the system had enough memory for {self._workers} "
                    f"workers"
                ) from error
            if isinstance(sent, _Failed):
                sent.throw()
            if found is None:
                return
            yield found

    def close(self) -> None:
        """End the workers; an error's traceback would keep the iterator, and so them, alive."""
        if self._batches is not None:
            self._batches._shutdown_workers()


@contextmanager
def _without_main_script() -> Iterator[None]:
    """Keep processes that are started from importing the main script.

    It would join its group of ranks again, and evaluate again. Its classes and functions reach the
    workers by value, which is what cloudpickle is for.
    """
    main = vars(sys.modules["__main__"])
    with _starting:
        saved: dict[str, Any] = {
            name: main[name] for name in ("__spec__", "__file__") if name in main
        }
        main.update(dict.fromkeys(saved))
        try:
            yield
        finally:
            main.update(saved)


def _pickled(read: Callable[[Picked], Batch]) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(read)
    except Exception as error:
        raise UsageError(
            f"the samples, or collate, can't be sent to worker processes: {describe_error(error)}; "
            f"open files and connections in __getitem__, or use workers=0"
        ) from error
    return stream.getvalue()


class _Pickler(Pickler):
    """Sends a memory-mapped array as the name of its file, for it may be larger than memory."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.memmap and obj.filename and obj.mode != "c" and obj.flags.forc:
            whole: Any = obj._mmap  # type: ignore[attr-defined]
            mapped = np.frombuffer(whole, np.uint8).ctypes.data
            page = obj.offset - obj.offset % mmap.ALLOCATIONGRANULARITY
            order = "C" if obj.flags.c_contiguous else "F"
            place = page + obj.ctypes.data - mapped  # a part of an array begins later than it
            return np.memmap, (obj.filename, obj.dtype, "r", place, obj.shape, order)
        return super().reducer_override(obj)


def _end_with_parent(_worker: int) -> None:
    """End this worker as soon as its rank is killed; it could wait for ever to send a batch."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _unchanged(value: Any) -> Any:
    return value


class _Sent(NamedTuple):
    """A batch on its way, pickled where an error can still be reported.

    Attributes:
        data: The pickle.
        shared: The memory of its large arrays, which is shared and not copied.
        sizes: The number of bytes of each of these arrays.
    """

    data: bytes
    shared: torch.Tensor
    sizes: list[int]

    def opened(self) -> Batch:
        memory = self.shared.numpy()
        buffers = [memory[start : start + size] for start, size in _places(self.sizes)]
        return cast(Batch, pickle.loads(self.data, buffers=buffers))


def _places(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where each array begins, at multiples of 64 bytes, and its size."""
    start = 0
    for size in sizes:
        yield start, size
        start += -(-size // 64) * 64


class _Failed(NamedTuple):
    """An error on its way, pickled with its cause and its traceback; see `_dumped_error`."""

    data: bytes

    def throw(self) -> NoReturn:
        found, cause, trace = pickle.loads(self.data)
        if hasattr(found, "add_note"):  # Python 3.11
            found.add_note(f"In a worker process:\n{trace}")
        raise found from cause


class _Reader:
    """Reads batches in a worker; a data set whose indices are what was picked."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._read: Callable[[Picked], Batch] | None = None

    def __getitem__(self, picked: Picked) -> _Sent | _Failed:
        try:
            if self._read is None:
                self._read = pickle.loads(self._pickled)
                self._pickled = b""
            seed_all(picked.indices)  # else the workers of all ranks draw the same numbers
            return _sent(self._read(picked), picked)
        except Exception as error:
            return _Failed(_dumped_error(error))


class _BatchPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends tensors in shared memory, and by value what comes from the main script."""

    dispatch_table: ClassVar = ChainMap(
        ForkingPickler(io.BytesIO()).dispatch_table, cloudpickle.Pickler.dispatch_table
    )


def _sent(batch: Batch, picked: Picked) -> _Sent:
    """Pickle a batch here, because an error in the queue to the rank would be lost."""
    large: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _LARGE:
            return True
        large.append(memory)
        return False

    stream = io.BytesIO()
    try:
        _BatchPickler(stream, 5, keep_inside).dump(batch)
    except Exception as error:
        raise UsageError(
            f"the batch with sample {picked.indices[0]} can't be sent from a worker process: "
            f"{describe_error(error)}; let collate return arrays, tensors and plain values, or "
            f"use workers=0"
        ) from error
    sizes = [memory.nbytes for memory in large]
    shared = torch.empty(sum(-(-size // 64) * 64 for size in sizes), dtype=torch.uint8)
    if large:  # all in one piece, because each piece takes a file descriptor
        target = shared.share_memory_().numpy()
        for (start, size), memory in zip(_places(sizes), large, strict=True):
            target[start : start + size] = np.frombuffer(memory, np.uint8)
    return _Sent(stream.getvalue(), shared, sizes)


def _dumped_error(error: Exception) -> bytes:
    """Pickle an error and its cause, as far as they can be rebuilt, with the traceback as text."""
    trace, told = "".join(traceback.format_exception(error)), describe_error(error)
    for found, cause in ((error, error.__cause__), (error, None)):
        with suppress(Exception):  # the text is sent in any case
            data = bytes(cloudpickle.dumps((found, cause, trace)))
            pickle.loads(data)
            return data
    return pickle.dumps((HarnessError(told), None, trace))
