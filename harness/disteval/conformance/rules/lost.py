"""Rules 7.1 to 7.5: the other ranks get an error when a rank is lost or late."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
import traceback
from typing import Any

from disteval.conformance.bench import Bench
from disteval.conformance.fingerprint import describe
from disteval.conformance.rule import BrokenRuleError, LostWorld, NotApplicableError, rule
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError, describe_error
from disteval.world import RankStatus, Results

# Starting ranks to lose them takes seconds, and more than three ranks show nothing new.
WORLD_SIZES = (2, 3)
WAIT_SECONDS = 3.0
"""The seconds that the backend gets as `Rendezvous.timeout`."""
_NEVER_SECONDS = 60.0
_GRACE_SECONDS = 0.1  # for the guilty rank, which may not end
_ERROR_LENGTH = 200
_EXPECTED = "; it should have raised an error"


@rule("7.1", "a rank exits", capability="detects_lost_ranks", loses_ranks=True)
def check_exit(bench: Bench) -> None:
    """When a rank exits, a collective is an error on all others within the bound.

    Usually: the library's error, or a closed connection, is taken for an answer; raise it, and
    return nothing that did not come from every rank. A wait for another rank has no limit; give
    Rendezvous.timeout to the library's group and to each receive. Or the library ends the whole
    process; set its error handler to return errors, or declare detects_lost_ranks a No.
    """
    _check_fault(bench, "exits")


@rule("7.2", "a rank is killed", capability="detects_lost_ranks", loses_ranks=True)
def check_kill(bench: Bench) -> None:
    """When a rank is killed, a collective is an error on all others within the bound.

    Usually: a closed connection is taken for an answer; raise an error, and return nothing that
    did not come from every rank. A wait for another rank has no limit; give Rendezvous.timeout
    to the library's group and to each receive. Or the library ends the whole process; set its
    error handler to return errors, or declare detects_lost_ranks a No.
    """
    _check_fault(bench, "is killed")


@rule("7.3", "a rank is frozen", capability="bounded_waits", loses_ranks=True)
def check_freeze(bench: Bench) -> None:
    """When a rank is stopped, a collective is an error on all others within the bound.

    Usually: a wait for another rank has no limit, or a longer one than Rendezvous.timeout, for
    the connection of a stopped rank stays open; give that timeout to the library's group and to
    each receive.
    """
    _check_fault(bench, "is frozen")


@rule("7.4", "a rank never calls", capability="bounded_waits", loses_ranks=True)
def check_absence(bench: Bench) -> None:
    """When a rank never calls a collective, it is an error on all others within the bound.

    Usually: a wait for another rank has no limit, or a longer one than Rendezvous.timeout; give
    that timeout to the library's group and to each receive. Or a wait that is over returns what
    has come so far; raise an error.
    """
    _check_fault(bench, "never calls")


@rule("7.5", "a rank comes too late", capability="bounded_waits", loses_ranks=True)
def check_too_late(bench: Bench) -> None:
    """When a rank comes too late for a collective, later ones are errors or right on every rank.

    Usually: messages do not say to which collective they belong, so that what a rank sent too
    late is received in the next one; send the collective's number along, or let every later
    call be an error.
    """
    world = bench.world_size
    _check_applies(bench, "a rank comes too late", "it would break the group of this job")
    # Rule 7.4 tries whether that is so.
    if reason := bench.cls.capabilities.why_not("bounded_waits"):
        raise NotApplicableError(reason)
    late = world % 2  # rank 0 at world size 2, and rank 1 at world size 3
    example = f"rank {late} of {world} calls a collective after the others have given up"
    # Each rank counts its own calls. The last one is called by all, each for the third time.
    turns = [(None, 0), (0, 1), (1, None), (2, 2)]
    bound = bound_of(bench)
    with bench.fresh(timeout=bound, backend_timeout=WAIT_SECONDS) as own:
        bench.ran += 1
        own.run(gather_call, ["warm up"] * world)
        for turn in turns:
            calls = [turn[0] if rank == late else turn[1] for rank in range(world)]
            found = own.run(gather_call, calls, [example])
            for rank, (call, outcome) in enumerate(zip(calls, found, strict=True)):
                right = [(call, other) for other in range(world)]
                # Without the late rank nothing can be right.
                if not isinstance(outcome, str) and (turn[0] is None or outcome != right):
                    raise BrokenRuleError(
                        f"rank {rank} returned from the collective with {describe(outcome)}; it "
                        f"should have raised an error or returned {describe(right)}",
                        example,
                    )


def bound_of(bench: Bench) -> float:
    """Return the seconds after which a wait for a rank that was lost has to be over."""
    return (WAIT_SECONDS + bench.cls.capabilities.grace) * bench.patience


def _check_applies(bench: Bench, what: str, harm: str) -> None:
    """Raise NotApplicableError where this is not tried, or would harm ranks that can't be lost."""
    if bench.world_size not in WORLD_SIZES:
        sizes = " and ".join(map(str, WORLD_SIZES))
        raise NotApplicableError(f"{what} only at world sizes {sizes}")
    if not bench.session.can_start:
        raise NotApplicableError(harm)


def _check_fault(bench: Bench, deed: str) -> None:
    world = bench.world_size
    harm = "losing ranks would end this job, which can't start other ranks"
    _check_applies(bench, "ranks are lost", harm)
    guilty = world % 2  # rank 0 at world size 2, and rank 1 at world size 3
    others = [rank for rank in range(world) if rank != guilty]
    bound = bound_of(bench)
    tasks = [(guilty, deed)] * world
    gone: dict[int, RankStatus] = {}
    with bench.fresh(backend_timeout=WAIT_SECONDS) as own:
        lost = own.world
        if deed != "never calls" and not lost.own_processes:
            raise NotApplicableError("not every rank is a separate process, which could be lost")
        bench.ran += 1
        # This is a separate order, because one rank may have its result before another has.
        own.run(gather_once, examples=["an all-gather, before any rank was lost"])
        deadline = time.monotonic() + bound

        def until(found: Results) -> bool:
            gone.update({status.rank: status for status in found.lost})
            return {*others} <= found.returned | gone.keys() or time.monotonic() > deadline

        found = lost.run(
            lose_a_rank, *tasks, on_lost=lambda _: None, until=until, grace=_GRACE_SECONDS
        )
        lost.terminate()
    waits, ended, certain = [], [], []
    for rank in others:
        status = gone.get(rank)
        if status is not None and status.reply is not None:  # it raised
            certain.append(f"rank {rank} could not report what it saw:\n{status.reply.trace}")
        elif status is not None:
            ended.append(rank)
            waits.append(f"rank {rank} ended as well ({status.how}){_EXPECTED}")
        elif rank not in found.returned:
            waits.append(f"rank {rank} still waits after {bound:g} s{_EXPECTED}")
        elif (seen := found[rank])[0]:
            bench.observed.append("rank {} raised {} after {:.1f} s".format(rank, *seen))
        else:  # no loss and no busy machine can explain a result
            certain.append(f"rank {rank} returned from the collective{_EXPECTED}")
    example = f"rank {guilty} of {world} {deed} before the second collective"
    if certain:
        raise BrokenRuleError("\n".join(certain + waits), example)
    if waits:
        raise LostWorld(WorldError("\n".join(waits), lost=ended), example)


def gather_once(backend: BaseDistBackend) -> list[int]:
    """Gather the numbers of the ranks."""
    return backend.all_gather_object(backend.rank)


def lose_a_rank(backend: BaseDistBackend, task: tuple[int, str]) -> tuple[str, float]:
    """Let one rank fail; return the error of a collective on the others, and its seconds."""
    guilty, deed = task
    if backend.rank == guilty:
        if deed == "exits":
            os._exit(3)
        if deed == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "is frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait(_NEVER_SECONDS)  # the check terminates the world before that
    begin, raised = time.monotonic(), ""
    try:
        backend.all_gather_object(backend.rank)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error))
        raised = textwrap.shorten(text, _ERROR_LENGTH, placeholder=" …")
    return raised, time.monotonic() - begin


def gather_call(backend: BaseDistBackend, call: Any) -> Any:
    """Return the error of an all-gather, as text, or its result; None stands for no call."""
    if call is None:
        return "not called"
    try:
        return backend.all_gather_object((call, backend.rank))
    except Exception as error:  # the contract asks for an error of any class
        return describe_error(error)
