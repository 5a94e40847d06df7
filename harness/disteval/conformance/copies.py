"""The checks of rule 4: results are copies that belong to the rank that received them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from disteval.conformance.fingerprint import Seen, see
from disteval.conformance.rules import Bench, rule
from disteval.contract import BaseDistBackend

_KINDS = ("dict", "array", "large array")
_LARGE_ENTRIES = 10_000  # more than 64 KiB
_LATE_SECONDS = 0.01


@rule("4.1", "independence")
def check_independence(bench: Bench) -> None:
    """A result is a copy: changing it changes neither the input nor another result."""
    world = bench.world_size
    for src in range(world):
        for kind in _KINDS:
            for alike in (False, True):
                sent = [0 if alike else rank for rank in range(world)]
                twice = [*sent, sent[src], *sent, sent[src]]
                expected = [
                    [
                        see(changeable(kind, sent[rank])),
                        *(_marked(kind, n, mark_of(rank, i)) for i, n in enumerate(twice)),
                    ]
                    for rank in range(world)
                ]
                example = (
                    f"every rank sends {'the same' if alike else 'its own'} {kind}, gathers twice, "
                    f"broadcasts twice from {src}, and changes each result"
                )
                bench.expect(change_results, [(kind, alike, src)] * world, expected, example)


@rule("4.2", "inputs are free again")
def check_inputs(bench: Bench) -> None:
    """A rank may change its input after a collective without changing a result on any rank."""
    world = bench.world_size
    for src in range(world):
        late = (src + 1) % world
        for kind in _KINDS:
            everybody = [see(changeable(kind, rank)) for rank in range(world)]
            expected = [[everybody[src], *everybody]] * world
            example = (
                f"every rank sends its own {kind}, broadcast from {src} and gathered, and changes "
                f"it when the call returns; rank {late} calls {_LATE_SECONDS:g} s later"
            )
            bench.expect(change_inputs, [(kind, src, late)] * world, expected, example)


def change_results(backend: BaseDistBackend, task: tuple[str, bool, int]) -> list[Seen]:
    """Change every result of four collectives in a different way, and describe all of them.

    Args:
        backend: The backend under test.
        task: The kind of object, whether all ranks send equal ones, and the source of broadcasts.

    Returns:
        This rank's input and its results, after all ranks have changed theirs.
    """
    kind, alike, src = task
    mine = changeable(kind, 0 if alike else backend.rank)
    results = [*backend.all_gather_object(mine), backend.broadcast_object(mine, src)]
    results += [*backend.all_gather_object(mine), backend.broadcast_object(mine, src)]
    for index, result in enumerate(results):
        _change(result, mark_of(backend.rank, index))
    # Ranks may be threads: a result that two ranks share has the marks of both after this call.
    backend.all_gather_object(None)
    return [see(mine), *(see(result) for result in results)]


def change_inputs(backend: BaseDistBackend, task: tuple[str, int, int]) -> list[Seen]:
    """Change the input of each collective as soon as it returns.

    Args:
        backend: The backend under test.
        task: The kind of object, the source of the broadcast, and the rank that comes late.

    Returns:
        The results of a broadcast and an all-gather, after all ranks have changed their inputs.
    """
    kind, src, late = task
    results: list[Any] = []
    for collective in ("broadcast", "gather"):
        mine = changeable(kind, backend.rank)
        if backend.rank == late:
            time.sleep(_LATE_SECONDS)
        if collective == "broadcast":
            results.append(backend.broadcast_object(mine, src))
        else:
            results += backend.all_gather_object(mine)
        _change(mine, 7)
    backend.all_gather_object(None)
    return [see(result) for result in results]


def changeable(kind: str, value: int) -> Any:
    """Return an object of that kind that can be changed, the same on every rank for one value."""
    array = np.full(_LARGE_ENTRIES if kind == "large array" else 3, value)
    if kind != "dict":
        return array
    large = np.full(_LARGE_ENTRIES, value)
    return {"list": [value], "array": array, "bytes": bytearray([value] * 9), "large": large}


def mark_of(rank: int, index: int) -> int:
    """Return the mark that a rank leaves on one of its results; no two marks are equal."""
    return 1 + 1000 * rank + index


def _change(obj: Any, mark: int) -> None:
    """Change every part of an object of `changeable`, so that the mark can be seen in it."""
    if not isinstance(obj, dict):
        obj += mark
        return
    obj["list"].append(mark)
    obj["array"] += mark
    obj["bytes"] += str(mark).encode()
    obj["large"] += mark
    obj["new"] = mark


def _marked(kind: str, value: int, mark: int) -> Seen:
    obj = changeable(kind, value)
    _change(obj, mark)
    return see(obj)
