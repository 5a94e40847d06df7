"""Rules 5.5 and 5.6: collectives of other threads and of forked children."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import connection
from typing import Any, NamedTuple

from disteval.conformance.bench import Bench
from disteval.conformance.collectives import payload
from disteval.conformance.fingerprint import describe
from disteval.conformance.rule import BrokenRuleError, NotApplicableError, Trial, rule
from disteval.conformance.rules.lost import bound_of
from disteval.contract import BaseDistBackend
from disteval.world.collective_log import LoggedBackend

_SIZES = (0, 100_000)  # a small object, and one that takes several messages
_LATE_SECONDS = 0.05
_SPARE_SECONDS = 1.0  # in which the rank ends its child, and can say so
_filters = threading.Lock()  # of warnings, which ranks share that are threads


class Sent(NamedTuple):
    """An object that names the call it was given to."""

    rank: int
    thread: int
    data: bytes


class Came(NamedTuple):
    """The outcome of a call: the thread of each rank that took part, or what else happened."""

    threads: Sequence[int] = ()
    refused: bool = False
    wrong: str = ""


@rule("5.5", "threads of a rank")
def check_threads(bench: Bench) -> None:
    """Collectives of two threads of a rank at once are errors or right, and the next one works.

    Usually: calls of two threads share connections, buffers or numbers; refuse the second call,
    as BytesBaseDistBackend does, or hold a lock during the whole collective. Or only the thread
    that joined the group knows it, and another takes itself for a world of one; keep the group
    in the class or in the backend object.
    """
    ranks = range(bench.world_size)
    for size in _SIZES:
        example = f"two threads of each rank gather objects of {size} bytes at once"
        found = bench.run(gather_in_two_threads, [size for _ in ranks], [example])
        lines = [
            f"thread {thread} of rank {rank} got {came.wrong}"
            for rank, (calls, _) in enumerate(found)
            for thread, came in enumerate(calls)
            if came.wrong
        ]
        lines += _disagreements([calls for calls, _ in found])
        lines += [
            f"the next collective of rank {rank} returned {after}"
            for rank, (_, after) in enumerate(found)
            if after != [("next", size, other) for other in ranks]
        ]
        if lines:
            raise BrokenRuleError("\n".join(lines), example)


def _disagreements(found: Sequence[Sequence[Came]]) -> list[str]:
    """Return the calls whose results say otherwise which calls met in one collective."""
    lines = []
    for rank, calls in enumerate(found):
        for thread, came in enumerate(calls):
            for other, with_thread in enumerate(came.threads):
                theirs = found[other][with_thread]
                if theirs.threads and theirs.threads != came.threads:
                    lines.append(
                        f"thread {thread} of rank {rank} got objects of threads "
                        f"{[*came.threads]}, and thread {with_thread} of rank {other}, one of "
                        f"them, those of threads {[*theirs.threads]}"
                    )
    return lines


def gather_in_two_threads(backend: BaseDistBackend, size: int) -> tuple[list[Came], Any]:
    """Return the outcomes of two threads that gather at once, and the next result."""
    world_size = backend.world_size
    if world_size > 1 and backend.rank == world_size - 1:
        time.sleep(_LATE_SECONDS)  # both threads of the other ranks are in their calls by then
    ended = [threading.Event(), threading.Event()]
    came = [Came(wrong="no result: its thread ended")] * 2

    def call(thread: int) -> None:
        try:
            came[thread] = _gather_as(backend, thread, size, world_size)
            if came[thread].refused:
                # A refused call may be repeated when the call is over for which it was refused.
                ended[thread].set()
                ended[1 - thread].wait()
                came[thread] = _gather_as(backend, thread, size, world_size)
        finally:
            ended[thread].set()

    other = threading.Thread(target=call, args=(1,), daemon=True)
    other.start()
    call(0)
    other.join()
    return came, backend.all_gather_object(("next", size, backend.rank))


def _gather_as(backend: BaseDistBackend, thread: int, size: int, world_size: int) -> Came:
    mine = Sent(backend.rank, thread, payload(size))
    try:
        gathered = backend.all_gather_object(mine)
    except Exception:  # the contract asks for an error of any class
        return Came(refused=True)
    threads = [sent.thread if isinstance(sent, Sent) else -1 for sent in gathered]
    if gathered != [Sent(rank, n, payload(size)) for rank, n in enumerate(threads)]:
        return Came(wrong=describe(gathered))
    if len(threads) != world_size or threads[mine.rank] != thread:
        return Came(wrong=f"objects of threads {threads} of {len(threads)} ranks")
    return Came(threads)


@rule("5.6", "forked children")
def check_forked_children(bench: Bench) -> None:
    """A collective in a forked child of a rank is an error or right, and disturbs no rank.

    Usually: the child uses what belongs to its parent's group; compare os.getpid() with that of
    init_process before anything else, and raise an error.
    """
    if not hasattr(os, "fork"):
        raise NotApplicableError("this platform has no fork")
    world = bench.world_size
    bound = bound_of(bench)
    for parent in sorted({0, world - 1}):
        example = (
            f"rank {parent} forks a child that gathers, and then all ranks do: what the child did "
            f"wrong, and the next results"
        )
        bench.run(gather_parents, [parent] * world)
        after = [[("rank", parent, rank) for rank in range(world)], ("rank", parent, parent)]
        tasks = [(parent, bound)] * world
        bench.expect(gather_in_a_child, [Trial(tasks, [["", *after]] * world, example)], bound)


def gather_parents(backend: BaseDistBackend, parent: int) -> list[Any]:
    """Gather and broadcast before the fork, so that connections and numbers exist."""
    mine = ("before", parent, backend.rank)
    return [backend.all_gather_object(mine), backend.broadcast_object(mine, parent)]


def gather_in_a_child(backend: BaseDistBackend, task: tuple[int, float]) -> list[Any]:
    """Return what a child of one rank did wrong, and the results of the ranks' next collectives."""
    parent, seconds = task
    wrong = fork_a_child(backend, seconds) if backend.rank == parent else ""
    mine = ("rank", parent, backend.rank)
    return [wrong, backend.all_gather_object(mine), backend.broadcast_object(mine, parent)]


def fork_a_child(backend: BaseDistBackend, seconds: float) -> str:
    """Gather in a child that ends by itself or is killed; return what it did wrong."""
    # The collective log is a file that the child shares with the rank.
    inner = backend.inner if isinstance(backend, LoggedBackend) else backend
    said, says = multiprocessing.Pipe(duplex=False)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_gather_in_child, args=(inner, says, seconds))
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library, or of Python, that there are threads
        child.start()
    says.close()
    with said:
        # Its exit status is not known where SIGCHLD is ignored, or a library reaps all.
        if not connection.wait([child.sentinel], seconds):
            child.kill()
            child.join()
            return f"still waited after {seconds:g} s; it should have raised an error"
        child.join()
        if (status := child.exitcode or 0) < 0:
            return f"was killed by {signal.Signals(-status).name}"
        with suppress(EOFError):  # the library has ended it
            return str(said.recv()) if said.poll() else ""
        return ""


def _gather_in_child(backend: BaseDistBackend, says: connection.Connection, seconds: float) -> None:
    wrong = "ended in a way that it did not expect"
    try:
        # A rank that is killed can't end its child.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + _SPARE_SECONDS)
        try:
            gathered = backend.all_gather_object("child")
            # A child is in no group, unless the backend has put it in one.
            right = ["child"] * backend.world_size
        except Exception:  # the contract asks for an error of any class
            wrong = ""
        else:
            wrong = "" if gathered == right else f"got {describe(gathered)}"
    finally:
        says.send(wrong)
        os._exit(0)  # without ending what the rank has
