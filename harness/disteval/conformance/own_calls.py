"""Calls of MPI that a test makes itself: only rank 0 runs tests, so they would wait for ever."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import FrameType, ModuleType
from typing import Any

from disteval.errors import UsageError
from disteval.host import RANK_THREAD

_MPI = "mpi4py.MPI"
_WHY = (
    "The disteval plugin leads the ranks: rank 0 alone runs the tests, and the other ranks wait "
    "for its orders, so MPI waits for them. Have all ranks call MPI, in a function that the test "
    "gives to world.run of the fixture world; or run tests that every rank is to run without the "
    "plugin: leave -p disteval.conformance.plugin out, or give -p no:disteval.conformance.plugin "
    "where a conftest.py names it."
)
_LOOK_SECONDS = 0.5


@contextmanager
def own_calls_end(seconds: float, end: Callable[[str], object]) -> Iterator[None]:
    """Let no test in the block wait for ever in MPI, which this thread would call alone.

    To begin MPI, by an import, is an error at once. Where ranks have begun it before, a call may
    take some seconds; then ``end`` is called, in another thread, for nothing else ends it.

    Args:
        seconds: The seconds.
        end: A function of sentences that say where this thread waits, and what to do.
    """
    tests, is_over, refusal = threading.get_ident(), threading.Event(), _Refusal()

    def watch() -> None:
        place, since = (0, 0), 0.0
        while not is_over.wait(_LOOK_SECONDS):
            frame = sys._current_frames()[tests]
            if place != (place := (id(frame), frame.f_lasti)):
                since = time.monotonic()
            elif time.monotonic() - since > seconds and _names_mpi(frame):
                where = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
                end(f"{_test()} has waited for {seconds:g} s in a call of MPI, at {where}. {_WHY}")
                return

    watcher = threading.Thread(target=watch, name="disteval-own-calls", daemon=True)
    sys.meta_path.insert(0, refusal)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        sys.meta_path.remove(refusal)


def reduce_once(backend: object) -> None:
    """Have MPI add up once, on each rank, if it has begun.

    Only then can a test be seen that adds up alone: the first time, mpi4py keeps Python's lock.
    """
    mpi = sys.modules.get(_MPI)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.barrier()  # without the lock, with which rank 0 could send no orders
        mpi.COMM_WORLD.allreduce(0)


class _Refusal(MetaPathFinder):
    """Refuses to import MPI, which begins it, but on order: all ranks are given that at once."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        __tracebackhide__ = True  # pytest shows the line of the test
        if name == _MPI and threading.current_thread().name != RANK_THREAD:
            raise UsageError(f"{_test()} imports {_MPI}, which begins MPI. {_WHY}")


def _test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0] or "a file of tests"


def _names_mpi(frame: FrameType) -> bool:
    """Return whether the line that a frame executes names an object of mpi4py."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    held = {**frame.f_globals, **frame.f_locals}
    for first, *names in (chain.split(".") for chain in re.findall(r"[^\W\d][\w.]*", line)):
        value = held.get(first)
        while names and not _is_of_mpi(value):
            value = inspect.getattr_static(value, names.pop(0), None)
        if _is_of_mpi(value):
            return True
    return False


def _is_of_mpi(value: object) -> bool:
    is_module = isinstance(value, ModuleType) and value.__name__ == _MPI
    return is_module or type(value).__module__ == _MPI
