"""The checks of rules 6.4 and 7.5: ranks that are in different collectives."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from disteval.conformance.faults import RETURNED, WAIT_SECONDS, WORLD_SIZES
from disteval.conformance.fingerprint import describe
from disteval.conformance.rules import (
    Bench,
    BrokenRuleError,
    LostWorld,
    NotApplicableError,
    Trial,
    rule,
)
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError, describe_error

_ERROR = "an error"


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
    if reason and not bench.worlds.can_be_lost:
        raise NotApplicableError(reason)
    trials = []
    for odd in sorted({0, last}):
        # None stands for an all-gather, a number for a broadcast from that rank.
        for mine, others in ((None, odd), (odd, None), (None, last - odd), (0, 1), (1, 0)):
            example = f"rank {odd} {_named(mine, 's')}, and the others {_named(others, '')}"
            task = (odd, mine, others)
            after = [("next", *task, rank) for rank in range(world)]
            trials.append(Trial([task] * world, [[_ERROR, after]] * world, example))
    bench.expect(call_unmatched, trials)


def _named(src: int | None, ending: str) -> str:
    return f"gather{ending}" if src is None else f"broadcast{ending} from {src}"


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


@rule("7.5", "a rank comes too late", capability="bounded_waits", loses_ranks=True)
def check_too_late(bench: Bench) -> None:
    """When a rank comes too late for a collective, later ones are errors or right on every rank.

    Usually: messages do not say to which collective they belong, so that what a rank sent too
    late is received in the next one; send the collective's number along, or let every later
    call be an error.
    """
    world = bench.world_size
    if world not in WORLD_SIZES:
        sizes = " and ".join(map(str, WORLD_SIZES))
        raise NotApplicableError(f"a rank comes too late only at world sizes {sizes}")
    if not bench.worlds.can_be_lost:
        raise NotApplicableError("it would break the group of this job")
    # Rule 7.4 tries whether that is so.
    if reason := bench.cls.capabilities.why_not("bounded_waits"):
        raise NotApplicableError(reason)
    late = world % 2  # rank 0 at world size 2, and rank 1 at world size 3
    example = f"rank {late} of {world} calls a collective after the others have given up"
    # Each rank counts its own calls. The last one is called by all, each for the third time.
    turns = [(None, 0), (0, 1), (1, None), (2, 2)]
    bound = WAIT_SECONDS + bench.cls.capabilities.grace
    with bench.worlds.another(timeout=bound, backend_timeout=WAIT_SECONDS) as own:
        bench.ran += 1
        own.get().run(gather_call, *["warm up"] * world)
        for turn in turns:
            calls = [turn[0] if rank == late else turn[1] for rank in range(world)]
            try:
                found = own.get().run(gather_call, *calls)
            except WorldError as error:
                raise LostWorld(error, example) from error
            for rank, (call, outcome) in enumerate(zip(calls, found, strict=True)):
                right = [(call, other) for other in range(world)]
                # Without the late rank nothing can be right.
                if not isinstance(outcome, str) and (turn[0] is None or outcome != right):
                    raise BrokenRuleError(
                        f"rank {rank} {RETURNED} with {describe(outcome)}; it should have raised "
                        f"an error or returned {describe(right)}",
                        example,
                    )


def gather_call(backend: BaseDistBackend, call: Any) -> Any:
    """Return the error of an all-gather, as text, or its result; None stands for no call."""
    if call is None:
        return "not called"
    try:
        return backend.all_gather_object((call, backend.rank))
    except Exception as error:  # the contract asks for an error of any class
        return describe_error(error)
