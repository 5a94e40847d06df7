"""The checks of rule 6: objects that can't be sent, can't be rebuilt or are too large."""

from __future__ import annotations

import itertools
from typing import Any

from disteval import frames
from disteval.conformance.causes import Seen
from disteval.conformance.on_ranks import (
    CannotBePickled,
    CannotBeUnpickled,
    payload,
    raises,
)
from disteval.conformance.rules import Bench, BrokenRuleError, Trial, rule
from disteval.contract import BaseDistBackend

_SMALL_CAP = 1 << 20
_COLLECTIVES = ("gathers", "broadcasts")
_IMPOSSIBLE = {"pickled": CannotBePickled, "unpickled": CannotBeUnpickled}
ONE_IS_TOLD = (
    "the object is serialised or checked before ranks communicate, so that only its rank has the "
    "error; catch it, and send the others a message that says so"
)


def one_is_told(seen: Seen) -> str:
    """Recognise in rules 6.1 and 6.2 that the rank with the bad object alone has raised."""
    found = seen.error.post_mortem if seen.error else None
    if found and found.waiting and any(status.returned for status in found.ranks):
        return ONE_IS_TOLD
    told = {d.rank: d.got[0] for d in seen.shown if d.got and len(d.got) == 2}
    if not told or len(told) < len(seen.shown):
        return ""
    guilty = seen.shown[0].trial.args[0][0]
    untold = {rank for rank in told if not told[rank]}
    return ONE_IS_TOLD if untold == set(range(seen.world_size)) - {guilty} else ""


@rule("6.1", "errors reach every rank", capability="propagates_errors", cause=one_is_told)
def check_unpicklable(bench: Bench) -> None:
    """An object that one rank can't send is an error on every rank; the next collective works.

    Usually: the object is serialised before ranks communicate, so that only its rank has the
    error, and the others wait; catch it, and send the others a message that says so. The error
    is caught and a value returned instead; raise it on every rank, as RankError or any other
    exception. Or something of the failed call is left behind, such as a flag or bytes that
    nobody has read; bring every call to its end on all ranks before you raise.
    """
    _check_error(bench, "pickled")


@rule("6.2", "objects that can't be rebuilt", cause=one_is_told)
def check_unloadable(bench: Bench) -> None:
    """An object that can't be rebuilt is an error where it arrives; the next collective works.

    Usually: the error is caught and a value returned instead; raise it. Or something of the
    failed call is left behind, such as a flag or bytes that nobody has read; bring every call
    to its end on all ranks before you raise.
    """
    _check_error(bench, "unpickled")


@rule("6.3", "payloads over the cap", process_wide=True)
def check_over_the_cap(bench: Bench) -> None:
    """An object over the cap is an error on every rank, or whole on every rank.

    Usually: the size is compared with the cap before ranks communicate, so that only one rank
    has the error; tell the others by a message. Or the payload is cut at the cap; raise an
    error on every rank.
    """
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
    outcomes = [outcome for outcome, _ in found]
    if outcomes not in (["error"] * world, ["whole"] * world):
        what = f"the ranks received: {', '.join(outcomes)}"
    elif any(after != [(*task, rank) for rank in range(world)] for _, after in found):
        what = f"the next collective returns {', '.join(str(after) for _, after in found)}"
    else:
        return
    example = f"rank {guilty} {collective} {2 * _SMALL_CAP} bytes, and the cap is {_SMALL_CAP}"
    raise BrokenRuleError(what, example)


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
    raised = raises(_call, backend, collective, obj, guilty)
    return [raised, backend.all_gather_object((*task, backend.rank))]


def limit(backend: BaseDistBackend, cap: int) -> None:
    """Set the largest number of bytes that an object may have in a frame."""
    frames.configure(max_object_bytes=cap)


def send_over_the_cap(backend: BaseDistBackend, task: tuple[int, str, int]) -> tuple[str, Any]:
    """Return the result of sending so many bytes, and that of the next collective."""
    guilty, collective, size = task
    mine = payload(size) if backend.rank == guilty else b""
    try:
        came = _call(backend, collective, mine, guilty)
    except Exception:
        outcome = "error"
    else:
        outcome = f"a {type(came).__name__}"
        if type(came) is bytes:
            outcome = "whole" if came == payload(size) else f"{len(came)} of {size} bytes"
    return outcome, backend.all_gather_object((*task, backend.rank))


def _call(backend: BaseDistBackend, collective: str, obj: Any, src: int) -> Any:
    """Gather or broadcast, and return rank ``src``'s object."""
    if collective == "broadcasts":
        return backend.broadcast_object(obj, src)
    return backend.all_gather_object(obj)[src]
