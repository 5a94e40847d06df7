"""The checks of rule 4: results are copies that belong to the rank that received them."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

from disteval.conformance.causes.copies import moment, sharing
from disteval.conformance.objects import CHANGE, change, changeable, changed
from disteval.conformance.rules import Bench, Trial, rule
from disteval.conformance.seen import Results
from disteval.contract import BaseDistBackend

_KINDS = ("dict", "array", "large array")
_LATE_SECONDS = 0.01


@rule("4.1", "independence", causes=[sharing])
def check_independence(bench: Bench) -> None:
    """A result is a copy: changing it changes neither the input nor another result."""
    ranks, trials = range(bench.world_size), []
    for src, (number, kind) in itertools.product(ranks, enumerate(_KINDS)):
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


@rule("4.2", "inputs are free again", causes=[moment])
def check_inputs(bench: Bench) -> None:
    """A rank may change what it has sent, without changing a result, and send it again as it is."""
    world, trials = bench.world_size, []
    for src, kind in itertools.product(range(world), _KINDS):
        late = (src + 1) % world
        expected = []
        for changes in range(4):
            everybody = [changed(kind, rank, *[CHANGE] * changes) for rank in range(world)]
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
    places = os.getpid(), [_places(obj) for obj in (mine, *results)]
    for index, result in enumerate(results):
        change(result, mark_of(backend.rank, index))
    # Ranks may be threads: a result that two ranks share has the marks of both after this call.
    backend.all_gather_object(None)
    found = Results([mine, *results])
    found.facts = places
    return found


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
        change(mine, CHANGE)
    backend.all_gather_object(None)
    return results


def mark_of(rank: int, index: int) -> int:
    """Return the mark that a rank leaves on one of its results; no two marks are equal."""
    return 1 + 1000 * rank + index


def _places(obj: Any) -> set[int]:
    """Return where the parts of an object that can change are in memory."""
    parts = [obj, *obj.values()] if type(obj) is dict else [obj]
    parts = [part for part in parts if isinstance(part, (list, bytearray, dict, np.ndarray))]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    return {*map(id, parts), *(array.__array_interface__["data"][0] for array in arrays)}
