"""The checks of rule 7: the other ranks get an error when a rank is lost."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
import traceback

from disteval.conformance.on_ranks import gather_once
from disteval.conformance.rules import Bench, BrokenRuleError, LostWorld, NotApplicableError, rule
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError
from disteval.world import RankStatus, Results

# Starting ranks to lose them takes seconds, and more than three ranks show nothing new.
WORLD_SIZES = (2, 3)
WAIT_SECONDS = 3.0
"""The seconds that the backend gets as `Rendezvous.timeout`."""

_NEVER_SECONDS = 60.0
_GRACE_SECONDS = 0.1  # for the guilty rank, which may not end
_ERROR_LENGTH = 200
_EXPECTED = "; it should have raised an error"
RETURNED = "returned from the collective"
"""The words for a survivor that had a result, which no loss and no busy machine can explain."""


@rule("7.1", "a rank exits", capability="detects_lost_ranks", loses_ranks=True)
def check_exit(bench: Bench) -> None:
    """When a rank exits, a collective is an error on all others within the bound.

    Usually: the library's error, or a closed connection, is taken for an answer; raise it, and
    return nothing that did not come from every rank. A wait for another rank has no limit; give
    Rendezvous.timeout to the library's group and to each receive. Or the library ends the whole
    process; set its error handler to return errors, or declare detects_lost_ranks a No.
    """
    _check_fault(bench, "exits")


@rule(
    "7.2",
    "a rank is killed",
    capability="detects_lost_ranks",
    loses_ranks=True,
)
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


def _check_fault(bench: Bench, deed: str) -> None:
    world = bench.world_size
    if world not in WORLD_SIZES:
        sizes = " and ".join(map(str, WORLD_SIZES))
        raise NotApplicableError(f"ranks are lost only at world sizes {sizes}")
    if not bench.worlds.can_be_lost:
        raise NotApplicableError("losing ranks would end this job, which can't start other ranks")
    guilty = world % 2  # rank 0 at world size 2, and rank 1 at world size 3
    others = [rank for rank in range(world) if rank != guilty]
    bound = WAIT_SECONDS + bench.cls.capabilities.grace
    lost = bench.worlds.fresh(WAIT_SECONDS)
    if deed != "never calls" and not lost.own_processes:
        lost.close()
        raise NotApplicableError("not every rank is a separate process, which could be lost")
    bench.ran += 1
    # This is a separate order, because one rank may have its result before another has.
    try:
        lost.run(gather_once)
    except WorldError as error:
        lost.close()
        example = "an all-gather, before any rank was lost"
        if error.in_step:
            raise BrokenRuleError(error.summary, example, error=error) from error
        raise LostWorld(error, example) from error
    tasks = [(guilty, deed)] * world
    gone: dict[int, RankStatus] = {}
    deadline = time.monotonic() + bound

    def until(found: Results) -> bool:
        gone.update({status.rank: status for status in found.lost})
        return {*others} <= found.returned | gone.keys() or time.monotonic() > deadline

    found = lost.run(lose_a_rank, *tasks, on_lost=lambda _: None, until=until, grace=_GRACE_SECONDS)
    lost.terminate()
    wrong, ended = [], []
    for rank in others:
        status = gone.get(rank)
        if status is not None and status.reply is not None:  # it raised
            wrong.append(f"rank {rank} could not report what it saw:\n{status.reply.trace}")
        elif status is not None:
            ended.append(rank)
            wrong.append(f"rank {rank} ended as well ({status.how}){_EXPECTED}")
        elif rank not in found.returned:
            wrong.append(f"rank {rank} still waits after {bound:g} s{_EXPECTED}")
        elif (seen := found[rank])[0]:
            bench.observed.append("rank {} raised {} after {:.1f} s".format(rank, *seen))
        else:
            wrong.append(f"rank {rank} {RETURNED}{_EXPECTED}")
    if wrong:
        what = "\n".join(wrong)
        example = f"rank {guilty} of {world} {deed} before the second collective"
        if ended and RETURNED not in what:
            raise LostWorld(WorldError(what, lost=ended), example)
        raise BrokenRuleError(what, example)


def lose_a_rank(backend: BaseDistBackend, task: tuple[int, str]) -> tuple[str, float]:
    """Let one rank fail; return the error of a collective on the others, and its seconds."""
    guilty, deed = task
    if backend.rank == guilty:
        _fail(deed)
        return "", 0.0
    begin, raised = time.monotonic(), ""
    try:
        backend.all_gather_object(backend.rank)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error))
        raised = textwrap.shorten(text, _ERROR_LENGTH, placeholder=" …")
    return raised, time.monotonic() - begin


def _fail(deed: str) -> None:
    if deed == "exits":
        os._exit(3)
    if deed == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "is frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait(_NEVER_SECONDS)  # the check terminates the world before that
