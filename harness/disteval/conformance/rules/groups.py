"""Rules 1.4 and 1.5: groups beside each other, and one after another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext

from disteval.conformance.bench import Bench
from disteval.conformance.collectives import Collective, raises, sequence, trial_of
from disteval.conformance.rule import (
    BrokenRuleError,
    LostWorld,
    NotApplicableError,
    failing_while,
    rule,
)
from disteval.conformance.rules.broadcast import broadcast_from_nowhere
from disteval.conformance.rules.identity import check_identity, check_identity_before
from disteval.conformance.rules.lost import WAIT_SECONDS, WORLD_SIZES
from disteval.conformance.rules.sequences import SPARE, fail_if_always_wrong, leaks, resources
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError

_COLLECTIVES = 8
_LATE_SECONDS = 0.01
_MOST_BESIDE = 8  # for two worlds of that many ranks there is room on any machine


@rule("1.4", "worlds side by side")
def check_side_by_side(bench: Bench) -> None:
    """Two worlds at once on one machine do not meet, and one goes on when the other has ended.

    Usually: the worlds share a port, a path or a name; take it from the rendezvous, which each
    group has for itself. Or leaving a group ends what other groups use; undo in
    finalize_process only what init_process of this group has done.
    """
    # It is required, so a check of larger worlds alone has to try it, too.
    _refuse_large(bench, _MOST_BESIDE)
    if not bench.session.can_start:
        raise NotApplicableError("this job can't start a second world")
    _call(bench, "the first world")
    with ExitStack() as beside:
        with failing_while("a second world started beside the first"), _no_start_is_a_failure():
            other = beside.enter_context(bench.fresh())
        at_once = failing_while("two worlds called collectives at once")
        with at_once, ThreadPoolExecutor(1) as thread:
            calls = thread.submit(_call, other, "the second world", 1)
            try:
                _call(bench, "the first world")
            finally:
                calls.result()
    with failing_while("the second world had ended"):
        _call(bench, "the first world")


@rule("1.5", "joined again", capability="joins_again", loses_ranks=True)
def check_joining_again(bench: Bench) -> None:
    """Ranks that left a group, also after a failed collective, can join another and start clean.

    Usually: the group that was left is still there in part, or is_initialized is still true;
    undo in finalize_process all that init_process has done, or, where the library can't,
    declare joins_again a No with the reason. Or finalize_process raises or does not return;
    have it leave without waiting for other ranks, also after an error.
    """
    _refuse_large(bench, max(WORLD_SIZES))
    world, can_start = bench.world_size, bench.session.can_start
    reason = bench.cls.capabilities.why_not("joins_again")
    if reason and (world == 1 or not can_start):
        raise NotApplicableError(reason)
    own = (
        bench.fresh(backend_timeout=WAIT_SECONDS)
        if can_start
        else nullcontext(Bench(bench.session, world))
    )
    with own as ranks:
        _call(ranks, "the first group")
        ranks.run(broadcast_from_nowhere, [-1] * world)
        with failing_while("the ranks had left and joined again"):
            _join_again(ranks)
            _call(ranks, "the second group")
        # It takes the timeout, so one world size has to do.
        if can_start and bench.cls.capabilities.bounded_waits and world == 2:
            ranks.run(gather_without_the_last)
        with failing_while("the ranks had joined again after a failed collective"):
            _join_again(ranks)
            _call(ranks, "the third group")
        if ranks.world.own_processes:
            _check_left(ranks)
        bench.ran += ranks.ran


def _check_left(ranks: Bench) -> None:
    """Leave and join more often than there may be descriptors or threads that stay by themselves.

    Both counts are taken in a group that has communicated, so what one group has is in both.
    """
    calls = [1] * ranks.world_size

    def measure() -> list[str]:
        before = ranks.run(resources, calls)
        for _ in range(SPARE + 1):
            ranks.join_again(WAIT_SECONDS)
        after = ranks.run(resources, calls)
        return [
            f"rank {rank} went from {was[:2]} to {now[:2]} (file descriptors, threads) when it "
            f"left {SPARE + 1} groups and joined others"
            for rank, (was, now) in enumerate(zip(before, after, strict=True))
            if leaks(was, now)
        ]

    fail_if_always_wrong(measure)


def _refuse_large(bench: Bench, most: int) -> None:
    if bench.is_larger:
        raise NotApplicableError("it is tried on fewer ranks")
    if bench.world_size > most:
        raise NotApplicableError(f"it is tried at world sizes up to {most}")


def _call(bench: Bench, whose: str, turn: int = 0) -> None:
    """Gather and broadcast objects that name the group; every rank is late at times."""
    world, steps = bench.world_size, []
    for number in range(_COLLECTIVES + 1):  # an odd number of them, should a buffer alternate
        sent = [(whose, number, rank) for rank in range(world)]
        late = dict.fromkeys(range((number + turn) % 2, world, 2), _LATE_SECONDS)
        src = None if number % 3 else number % world
        steps.append(Collective(sent, src, late if world > 1 else {}))
    bench.expect(sequence, [trial_of(steps)])


def _join_again(bench: Bench) -> None:
    first = [*bench.world.before]
    with _no_start_is_a_failure():
        bench.join_again(WAIT_SECONDS)
    for rank, (before, left) in enumerate(zip(first, bench.world.before, strict=False)):
        if before == (False, 0, 1) != left:
            raise BrokenRuleError(
                f"after finalize_process rank {rank} says (in a group, rank, world size): {left}; "
                f"before init_process it said {before}"
            )
    check_identity(bench)
    check_identity_before(bench)


def gather_without_the_last(backend: BaseDistBackend) -> bool:
    """Return whether an all-gather raised an error that the last rank does not call."""
    if backend.rank == backend.world_size - 1:
        return True
    return raises(backend.all_gather_object, "a collective that fails")


@contextmanager
def _no_start_is_a_failure() -> Iterator[None]:
    try:
        yield
    except WorldError as error:
        raise LostWorld(error, "") from error
