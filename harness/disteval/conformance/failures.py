"""The checks of rule 6: objects that can't be sent, can't be rebuilt or are too large."""

from __future__ import annotations

import itertools
from typing import Any

from disteval import frames
from disteval.conformance.causes.lists import LISTS
from disteval.conformance.causes.special import errors, over_the_cap
from disteval.conformance.on_ranks import (
    CannotBePickled,
    CannotBeUnpickled,
    payload,
    raises,
    works_before,
)
from disteval.conformance.rules import Bench, BrokenRuleError, Trial, rule
from disteval.conformance.seen import Results
from disteval.contract import BaseDistBackend

_SMALL_CAP = 1 << 20
_COLLECTIVES = ("gathers", "broadcasts")
_CAUSES = (errors, *LISTS)
_IMPOSSIBLE = {"pickled": CannotBePickled, "unpickled": CannotBeUnpickled}


@rule("6.1", "errors reach every rank", capability="propagates_errors", causes=_CAUSES)
def check_unpicklable(bench: Bench) -> None:
    """An object that one rank can't send is an error on every rank; the next collective works."""
    _check_error(bench, "pickled")


@rule("6.2", "objects that can't be rebuilt", causes=_CAUSES)
def check_unloadable(bench: Bench) -> None:
    """An object that can't be rebuilt is an error where it arrives; the next collective works."""
    _check_error(bench, "unpickled")


@rule("6.3", "payloads over the cap", process_wide=True, causes=[over_the_cap])
def check_over_the_cap(bench: Bench) -> None:
    """An object over the cap is an error on every rank, or whole on every rank."""
    world = bench.world_size
    cap = frames.max_object_bytes()
    bench.run(limit, [_SMALL_CAP] * world)
    try:
        for guilty, collective in itertools.product(range(world), _COLLECTIVES):
            _check_cap(bench, guilty, collective)
    finally:
        # Ranks that are threads share the cap with the leader.
        frames.configure(max_object_bytes=cap)
        if not bench.worlds.is_lost:
            bench.run(limit, [cap] * world)


def _check_cap(bench: Bench, guilty: int, collective: str) -> None:
    world = bench.world_size
    task = guilty, collective, 2 * _SMALL_CAP
    found = bench.run(send_over_the_cap, [task] * world)
    outcomes = [outcome for outcome, *_ in found]
    if outcomes not in (["error"] * world, ["whole"] * world):
        what = f"the ranks received: {', '.join(outcomes)}"
    elif any(after != [(*task, rank) for rank in range(world)] for *_, after in found):
        what = f"the next collective returns {', '.join(str(after) for *_, after in found)}"
    else:
        return
    example = f"rank {guilty} {collective} {2 * _SMALL_CAP} bytes, and the cap is {_SMALL_CAP}"
    facts = guilty, outcomes, [before for _, before, _ in found]
    raise BrokenRuleError(what, example, facts=facts)


def _check_error(bench: Bench, deed: str) -> None:
    world = bench.world_size
    trials = []
    for guilty, collective in itertools.product(range(world), _COLLECTIVES):
        example = (
            f"rank {guilty} {collective} an object that can't be {deed}: whether each rank "
            f"raised, and the result of the next collective"
        )
        task = guilty, collective, deed
        expected = [True, [(*task, rank) for rank in range(world)]]
        trials.append(Trial([task] * world, [expected] * world, example))
    bench.expect(send_impossible, trials)


def send_impossible(backend: BaseDistBackend, task: tuple[int, str, str]) -> list[Any]:
    """Return whether an object that one rank can't send raised an error, and the next result."""
    guilty, collective, deed = task
    obj = _IMPOSSIBLE[deed]() if backend.rank == guilty else backend.rank
    before = works_before(backend, task)
    raised = raises(_call, backend, collective, obj, guilty)
    results = Results([raised, backend.all_gather_object((*task, backend.rank))])
    results.facts = before
    return results


def limit(backend: BaseDistBackend, cap: int) -> None:
    """Set the largest number of bytes that an object may have in a frame."""
    frames.configure(max_object_bytes=cap)


def send_over_the_cap(
    backend: BaseDistBackend, task: tuple[int, str, int]
) -> tuple[str, bool, Any]:
    """Return the result of sending so many bytes, whether it worked before, and what comes next."""
    guilty, collective, size = task
    before = works_before(backend, task)
    mine = payload(size) if backend.rank == guilty else b""
    try:
        came = _call(backend, collective, mine, guilty)
    except Exception:
        outcome = "error"
    else:
        outcome = f"a {type(came).__name__}"
        if type(came) is bytes:
            outcome = "whole" if came == payload(size) else f"{len(came)} of {size} bytes"
    return outcome, before, backend.all_gather_object((*task, backend.rank))


def _call(backend: BaseDistBackend, collective: str, obj: Any, src: int) -> Any:
    """Gather or broadcast, and return rank ``src``'s object."""
    if collective == "broadcasts":
        return backend.broadcast_object(obj, src)
    return backend.all_gather_object(obj)[src]
