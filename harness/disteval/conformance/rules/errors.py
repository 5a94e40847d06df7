"""Rules 6.1 to 6.4: objects that can't be sent or rebuilt or are too large, and ranks that part."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

from disteval import frames
from disteval.conformance.bench import Bench
from disteval.conformance.causes import Seen
from disteval.conformance.collectives import payload, raises
from disteval.conformance.rule import BrokenRuleError, NotApplicableError, Trial, rule
from disteval.contract import BaseDistBackend

_SMALL_CAP = 1 << 20
_COLLECTIVES = ("gathers", "broadcasts")
ONE_IS_TOLD = (
    "the object is serialised or checked before ranks communicate, so that only its rank has the "
    "error; catch it, and send the others a message that says so"
)
_ERROR = "an error"


class CannotBePickled:
    """An object that no rank can send."""

    def __reduce__(self) -> Any:
        raise TypeError("this object can't be pickled")


class CannotBeUnpickled:
    """An object that every rank can send and no rank can receive."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("this object can't be unpickled")


_IMPOSSIBLE = {"pickled": CannotBePickled, "unpickled": CannotBeUnpickled}


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
            task = guilty, collective, 2 * _SMALL_CAP
            found = bench.run(send_over_the_cap, [task] * world)
            outcomes, what = [outcome for outcome, _ in found], ""
            if outcomes not in (["error"] * world, ["whole"] * world):
                what = f"the ranks received: {', '.join(outcomes)}"
            elif any(after != [(*task, rank) for rank in range(world)] for _, after in found):
                what = f"the next collective returns {', '.join(str(after) for _, after in found)}"
            if what:
                sent = f"rank {guilty} {collective} {2 * _SMALL_CAP} bytes"
                raise BrokenRuleError(what, f"{sent}, and the cap is {_SMALL_CAP}")
    finally:
        # Ranks that are threads share the cap with the leader.
        frames.configure(max_object_bytes=cap)
        if not bench.session.is_lost(bench.world_size):
            bench.run(limit, [cap] * world)


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
    for trial in trials:  # ranks that part at an error do not meet in the next one
        bench.expect(send_impossible, [trial])


@rule("6.4", "unmatched collectives", capability="detects_mismatches")
def check_mismatches(bench: Bench) -> None:
    """Ranks that call different collectives all get an error, and the next collective works.

    Usually: messages do not say to which collective they belong; send its number and name
    along, and raise an error on every rank where those of others differ. Or a rank's collective
    ends before a message of every other rank has come, so that it does not learn of their
    errors; let each collective wait for all ranks.
    """
    world, last = bench.world_size, bench.world_size - 1
    if world == 1:
        raise NotApplicableError("at world size 1 no rank can be in another collective")
    reason = bench.cls.capabilities.why_not("detects_mismatches")
    if reason and not bench.session.can_start:
        raise NotApplicableError(reason)
    trials = []
    for odd in sorted({0, last}):
        # None stands for an all-gather, a number for a broadcast from that rank.
        for mine, others in ((None, odd), (odd, None), (None, last - odd), (0, 1), (1, 0)):
            example = f"rank {odd} {_named(mine, 's')}, and the others {_named(others, '')}"
            task = (odd, mine, others)
            after = [("next", *task, rank) for rank in range(world)]
            trials.append(Trial([task] * world, [[_ERROR, after]] * world, example))
    for trial in trials:
        bench.expect(call_unmatched, [trial])


def _named(src: int | None, ending: str) -> str:
    return f"gather{ending}" if src is None else f"broadcast{ending} from {src}"


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


def call_unmatched(backend: BaseDistBackend, task: tuple[int, int | None, int | None]) -> list[Any]:
    """Return the outcome of a collective that one rank calls otherwise, and the next result."""
    odd, mine, others = task
    src = mine if backend.rank == odd else others
    obj = ("unmatched", *task, backend.rank)
    found: Any = _ERROR
    with suppress(Exception):  # the contract asks for an error of any class
        if src is None:
            found = backend.all_gather_object(obj)
        else:
            found = backend.broadcast_object(obj, src)
    return [found, backend.all_gather_object(("next", *task, backend.rank))]
