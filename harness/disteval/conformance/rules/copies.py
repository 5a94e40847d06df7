"""Rules 4.1 and 4.2: results are copies that belong to the rank that received them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from disteval.conformance.bench import Bench
from disteval.conformance.causes import Seen, explains
from disteval.conformance.collectives import Collective, sequence, trial_of
from disteval.conformance.rule import Trial, rule
from disteval.conformance.wrong import Difference, same
from disteval.contract import BaseDistBackend

SENT_LATE = (
    "an object is read after the call has returned, as by a send that nobody waits for; serialise "
    "it first, or wait until it was sent"
)
CACHED = (
    "an old copy of an object that has changed since is sent, as from a cache by identity; "
    "serialise the object in each call"
)
_KINDS = ("dict", "array", "large array", "tuple")
_LATE_SECONDS = 0.01
_LARGE_ENTRIES = 10_000  # more than 64 KiB
_HUGE_ENTRIES = 150_000  # more than 1 MiB
_CALLS = 9  # more than there are buffers that a library uses in turn
_CHANGE = 7  # the mark of a change to what a rank has sent


def moment(seen: Seen) -> str:
    """Recognise results of rule 4.2 that show the input as it was earlier or later."""
    for cause in (SENT_LATE, CACHED):

        def explained(difference: Difference, cause: str = cause) -> bool:
            found = list(_moments(difference, seen.world_size))
            return bool(found) and all(cause == each for each in found)

        if explains(seen, explained):
            return cause
    return ""


def _moments(difference: Difference, world: int) -> Iterator[str]:
    """Return what each wrong result of rule 4.2 shows: the input changes after each collective."""
    kind, src, _ = difference.trial.args[difference.rank]
    senders = [[src], [*range(world)]] * 2
    then = [(number, sender) for number, each in enumerate(senders) for sender in each]
    for got, (number, sender) in zip(difference.got or (), then, strict=True):
        marks = [when for when in range(5) if same(got, changed(kind, sender, *[_CHANGE] * when))]
        if marks == [4] and sender == difference.rank:  # it is the input, which changes to the end
            yield ""
        elif marks != [number]:
            yield "" if not marks else SENT_LATE if marks[0] > number else CACHED


@rule("4.1", "independence")
def check_independence(bench: Bench) -> None:
    """A result is a copy: changing it changes neither the input nor another result.

    Usually: a rank gets its own object back, in its entry of an all-gather or as src of a
    broadcast; return a copy, for example of the pickled bytes. A result lies in a buffer or a
    cache that a later call, or another rank of the process, uses too; return new objects from
    each call. Equal objects of several ranks are rebuilt once; rebuild each entry. Or the
    collective changes the object that it is given; work on a copy.
    """
    ranks, trials = range(bench.world_size), []
    sources = ranks[-1 if bench.is_larger else -2 :]
    for src, (number, kind) in itertools.product(sources, enumerate(_KINDS)):
        alike = (src + number) % 2 == 1  # with two ranks or more, each kind is sent both ways
        sent = [0 if alike else rank for rank in ranks]
        twice = [*sent, sent[src], *sent, sent[src]]
        expected = [
            [
                changeable(kind, sent[rank]),
                *(changed(kind, n, mark_of(rank, i)) for i, n in enumerate(twice)),
            ]
            for rank in ranks
        ]
        example = (
            f"every rank sends {'the same' if alike else 'its own'} {kind}, gathers twice, "
            f"broadcasts twice from {src}, and changes each result"
        )
        trials.append(Trial([(kind, alike, src) for _ in ranks], expected, example))
    bench.expect(change_results, trials)
    if bench.is_smallest:  # buffers that are used in turn may be for large objects alone
        calls = [
            Collective([np.full(_HUGE_ENTRIES, 100 * call + rank) for rank in ranks])
            for call in range(_CALLS)
        ]
        bench.expect(sequence, [trial_of(calls)])


@rule("4.2", "inputs are free again", cause=moment)
def check_inputs(bench: Bench) -> None:
    """A rank may change what it has sent, without changing a result, and send it again as it is.

    Usually: an object is read after the call has returned, as by a send that nobody waits for;
    serialise it first, or wait until it was sent. Or an old copy is sent, as from a cache by
    identity; serialise the object in each call.
    """
    world, trials = bench.world_size, []
    sources = range(world)[-1 if bench.is_larger else -2 :]
    for src, kind in itertools.product(sources, _KINDS):
        late = (src + 1) % world
        expected = []
        for changes in range(4):
            everybody = [changed(kind, rank, *[_CHANGE] * changes) for rank in range(world)]
            expected += everybody if changes % 2 else [everybody[src]]
        example = (
            f"every rank sends its own {kind}, broadcast from {src} and gathered, both twice, and "
            f"changes it when a call returns; rank {late} calls {_LATE_SECONDS:g} s later"
        )
        trials.append(Trial([(kind, src, late)] * world, [expected] * world, example))
    bench.expect(change_inputs, trials)


def change_results(backend: BaseDistBackend, task: tuple[str, bool, int]) -> list[Any]:
    """Return an input and the results of four collectives, each of which all ranks have changed.

    The task is the kind of object, whether all ranks send equal ones, and the broadcasts' source.
    """
    kind, alike, src = task
    mine = changeable(kind, 0 if alike else backend.rank)
    results = [*backend.all_gather_object(mine), backend.broadcast_object(mine, src)]
    results += [*backend.all_gather_object(mine), backend.broadcast_object(mine, src)]
    for index, result in enumerate(results):
        change(result, mark_of(backend.rank, index))
    # Ranks may be threads: a result that two ranks share has the marks of both after this call.
    backend.all_gather_object(None)
    return [mine, *results]


def change_inputs(backend: BaseDistBackend, task: tuple[str, int, int]) -> list[Any]:
    """Return the results of broadcasts and all-gathers of one object that changes after each call.

    The task is the kind of object, the source of the broadcasts, and the rank that comes late.
    """
    kind, src, late = task
    mine = changeable(kind, backend.rank)
    results: list[Any] = []
    for collective in range(4):
        if backend.rank == late:
            time.sleep(_LATE_SECONDS)
        if collective % 2:
            results += backend.all_gather_object(mine)
        else:
            results.append(backend.broadcast_object(mine, src))
        change(mine, _CHANGE)
    backend.all_gather_object(None)
    return results


def mark_of(rank: int, index: int) -> int:
    """Return the mark that a rank leaves on one of its results; no two marks are equal."""
    return 1 + 1000 * rank + index


def changeable(kind: str, value: int) -> Any:
    """Return an object of that kind that can be changed, the same on every rank for one value."""
    array = np.full(_LARGE_ENTRIES if kind == "large array" else 3, value)
    if kind == "tuple":
        return [value], array
    if kind != "dict":
        return array
    large = np.full(_LARGE_ENTRIES, value)
    return {"list": [value], "array": array, "bytes": bytearray([value] * 9), "large": large}


def change(obj: Any, mark: int) -> None:
    """Change every part of an object of `changeable`, so that the mark can be seen in it."""
    if isinstance(obj, tuple):
        obj[0].append(mark)
        obj = obj[1]
    if not isinstance(obj, dict):
        obj += mark
        return
    obj["list"].append(mark)
    obj["array"] += mark
    obj["bytes"] += str(mark).encode()
    obj["large"] += mark
    obj["new"] = mark


def changed(kind: str, value: int, *marks: int) -> Any:
    """Return an object of `changeable` after changes with these marks."""
    obj = changeable(kind, value)
    for mark in marks:
        change(obj, mark)
    return obj
