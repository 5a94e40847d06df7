"""Rules 5.1 to 5.4: many collectives in a row give the results that the checks expect."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from disteval.conformance.bench import Bench
from disteval.conformance.collectives import Collective, payload, raises, sequence, trial_of
from disteval.conformance.fingerprint import describe
from disteval.conformance.rule import BrokenRuleError, NotApplicableError, Trial, rule
from disteval.conformance.rules.errors import CannotBeUnpickled
from disteval.conformance.world import identity_of
from disteval.contract import BaseDistBackend
from disteval.world.collective_log import LoggedBackend

LATE_SECONDS = (0.01, 0.1, 1.0)
"""The seconds by which ranks are late at a collective in rule 5.2."""
_SLIGHTLY_LATE_SECONDS = 0.002
_FEW, _AHEAD, _AHEAD_SECONDS = 10, 4_000, 0.3
_WARM_UP_CALLS = 10
_CALLS = 50
_TRIES = 3
SPARE = 5
"""The descriptors, and the threads, that a library may add by itself."""
# The caches of an interpreter may grow by so many bytes over a few hundred calls.
_SPARE_BYTES = 8 << 20


@rule("5.1", "sequences", draws="STEPS")
def check_sequences(bench: Bench) -> None:
    """Any interleaving of collectives, objects and sources keeps its pairing and its results.

    Usually: what was sent in one call is received in another; let no rank begin its next call
    while another still reads this one's, and tag messages with the number of the call. Or a
    buffer, a cache or a list is used again by a later call; receive into new memory, and return
    a new list.
    """
    from disteval.conformance.drawing import STEPS, each  # ranks need no Hypothesis

    def trial(steps: list[tuple[list[Any], int | None, int | None]], world: int) -> Trial:
        return trial_of(
            Collective(
                [(rank, drawn[rank % len(drawn)]) for rank in range(world)],
                None if src is None else src % world,
                {} if late is None else {late % world: _SLIGHTLY_LATE_SECONDS},
            )
            for drawn, src, late in steps
        )

    each(bench, sequence, STEPS, trial)


@rule("5.2", "late ranks")
def check_late_ranks(bench: Bench) -> None:
    """Ranks that are 10 ms, 100 ms, 1 s or thousands of broadcasts late change no result.

    Usually: the object of a rank that comes late is not awaited, as with a poll or a wait that
    ends too early without an error; wait until Rendezvous.timeout, and raise an error after
    that. Or a rank that is early begins its next call while another still reads this one's. Or
    a queue drops what the source sends before others have read; let the source wait then.
    """
    world = bench.world_size
    last = world - 1
    sent = [("late", rank) for rank in range(world)]
    odd, even, others = range(1, world, 2), range(0, world, 2), range(1, world)
    trials = []
    # One rank waits for no other; how long ranks wait, a smaller world has shown.
    for seconds in LATE_SECONDS[: (2 if bench.is_larger else 3) if last else 1]:
        # Every rank is late at one of two all-gathers. Of the broadcasts, the source comes late to
        # one and everybody else comes late to the other.
        for ranks, src in ((odd, None), (even, None), ((last,), last), (others, 0)):
            late = dict.fromkeys(ranks, seconds)
            trials.append(trial_of([Collective(sent, src, late), Collective(sent)]))
    bench.expect(sequence, trials, LATE_SECONDS[-1])
    if last and not bench.is_larger:
        example = f"rank 0 broadcasts {_AHEAD} times in a row, if it does not wait for the others"
        bench.expect(run_ahead, [Trial([0] * world, [[[]]] * world, f"{example}; the first wrong")])


@rule("5.3", "no leaks", level="stochastic", process_wide=True)
def check_leaks(bench: Bench) -> None:
    """A hundred calls leave no file descriptor, no thread and no memory behind, nor do failed ones.

    Usually: files or sockets are opened and left open, threads are started that do not end, or
    bytes such as results and buffers are kept; close, join or drop them when the call returns
    or raises, or keep one of each for all calls.
    """
    if bench.is_larger:
        raise NotApplicableError("it is measured on fewer ranks")

    def measure() -> list[str]:
        before = bench.run(resources, [_WARM_UP_CALLS] * bench.world_size)
        after = bench.run(resources, [_CALLS] * bench.world_size)
        return [
            f"rank {rank} went from {was} to {now} (file descriptors, threads, bytes) "
            f"over {2 * _CALLS} collectives and {_CALLS // 2} that failed"
            for rank, (was, now) in enumerate(zip(before, after, strict=True))
            if leaks(was, now) or now[2] > was[2] + _SPARE_BYTES
        ]

    fail_if_always_wrong(measure)


@rule("5.4", "several objects")
def check_several_objects(bench: Bench) -> None:
    """Collectives of several objects of one backend class keep their pairing and their results.

    Usually: each object has buffers, connections or numbers of calls of its own, while all of
    them share one group; keep that state once for the group.
    """
    world = bench.world_size
    trials = []
    for src in {0, world - 1} if not bench.is_larger else {world - 1}:
        expected: list[Any] = [[(call, rank) for rank in range(world)] for call in range(3)]
        expected += [(call, src) for call in range(3)]
        for turn in range(4):
            objects = range(2 if turn < 2 else 3)
            expected += [[(turn, index, rank) for rank in range(world)] for index in objects]
            expected += [(turn, index, src) for index in objects]
        everywhere = [[*expected, [(rank, world)] * 3] for rank in range(world)]
        example = (
            f"each rank creates three backend objects; all gather, then all broadcast from {src}"
        )
        trials.append(Trial([src] * world, everywhere, example))
    bench.expect(use_several_objects, trials)


def run_ahead(backend: BaseDistBackend, src: int) -> list[Any]:
    """Return which of many broadcasts came wrong: of thousands, if the source does not wait.

    The others come late, so that the source sees by its clock whether it waits for them. If it
    does not, they come late once more, and it broadcasts all that time.
    """
    backend.all_gather_object(None)
    if backend.rank != src:
        time.sleep(_AHEAD_SECONDS)
    begin = time.monotonic()
    found = [backend.broadcast_object(number, src) for number in range(_FEW)]
    is_ahead = time.monotonic() - begin < _AHEAD_SECONDS / 3
    count = backend.broadcast_object(_AHEAD if is_ahead else 0, src)
    if count and backend.rank != src:
        time.sleep(_AHEAD_SECONDS)
    sent = [(number, payload(1000)) for number in range(count)]  # they fill a socket's buffers
    found += [backend.broadcast_object(each, src) for each in sent]
    backend.all_gather_object(None)
    pairs = zip(found, [*range(_FEW), *sent], strict=True)
    wrong = [f"{describe(got)} as number {n}" for n, (got, own) in enumerate(pairs) if got != own]
    return [wrong[:1]]


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


def fail_if_always_wrong(measure: Callable[[], list[str]]) -> None:
    """Break the rule if what varies by itself is wrong in several measurements in a row.

    Args:
        measure: Measures, and returns what is wrong, a line each.
    """
    for _ in range(_TRIES):
        if not (lines := measure()):
            return
    raise BrokenRuleError("\n".join(lines))


def leaks(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether there are more descriptors or threads than a library adds by itself."""
    return any(now > was + SPARE for was, now in zip(before[:2], after[:2], strict=True))


def resources(backend: BaseDistBackend, calls: int) -> tuple[int, int, int]:
    """Return file descriptors, threads and resident bytes after so many more calls.

    Every second call is followed by one that fails, as rule 6.2 says, on all ranks.
    """
    for call in range(calls):
        backend.all_gather_object([call, b"x" * 200_000])
        backend.broadcast_object(call, call % backend.world_size)
        if call % 2:
            raises(backend.all_gather_object, CannotBeUnpickled())
    gc.collect()
    if not Path("/proc/self/statm").exists():
        return 0, threading.active_count(), 0
    files, threads = (len([*Path("/proc/self", kind).iterdir()]) for kind in ("fd", "task"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return files, threads, pages * os.sysconf("SC_PAGE_SIZE")
