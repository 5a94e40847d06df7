"""Rules 2.1 to 2.4: the all-gather."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from disteval.conformance.bench import Bench
from disteval.conformance.collectives import Collective, Payload, payloads, sequence, trial_of
from disteval.conformance.objects import KINDS, SIZES, large, large_of_each
from disteval.conformance.rule import LostWorld, NotApplicableError, Trial, failing_while, rule
from disteval.conformance.rules.identity import check_identity
from disteval.errors import LibraryMissingError, WorldError

_SECONDS_PER_RANK = 3.0
_MANY_RANKS = 16  # so many that 10 comes before 2 where ranks are sorted as text


@rule("2.1", "all-gather order", starts_many=True, draws="ONE_EACH")
def check_all_gather(bench: Bench) -> None:
    """On every rank, entry r of an all-gather is rank r's object, to the last bit.

    Usually: objects stand in the order in which they arrive; put that of rank r at index r. A
    rank's own object is left out, or stands in the place of another's; fill the list from what
    was received, and put a copy of its own there. Only one rank has the list, as after a gather
    to a root; call the library's all-gather. What is returned is no list, or holds lists of
    one; return list(…) of it, and send the object itself.
    """
    from disteval.conformance.drawing import ONE_EACH, each  # ranks need no Hypothesis

    each(bench, sequence, ONE_EACH, _gathering)
    if not bench.is_smallest:
        return
    if not bench.session.can_start:
        why_not = "this job can't start other ranks"
    elif (bench.session.launcher or bench.cls.launcher) == "ray":
        why_not = "on Ray each rank takes seconds to start"
    else:
        why_not = _check_many(bench)
    if why_not:
        bench.left_out = f"not tried with {_MANY_RANKS} ranks: {why_not}"


def _check_many(bench: Bench) -> str:
    """Let many ranks gather and broadcast their numbers, which shows ranks in order of text.

    Returns:
        Why this host is too small for so many; nothing if it is not.
    """
    lists = [[rank] * _MANY_RANKS**2 for rank in range(_MANY_RANKS)]  # they take a second move
    calls = [Collective([*range(_MANY_RANKS)], src) for src in (None, 1, 2, 10, _MANY_RANKS - 1)]
    calls += [Collective(lists), Collective(lists, 10)]
    with failing_while(f"{_MANY_RANKS} ranks gathered and broadcast"):
        try:
            with bench.fresh(_MANY_RANKS) as many:
                check_identity(many)
                many.expect(sequence, [trial_of([call]) for call in calls])
                bench.ran += many.ran
        except WorldError as error:  # they did not start
            if not isinstance(error.common, LibraryMissingError):
                raise LostWorld(error, "") from error
            return str(error.common)  # there are fewer GPUs
    return ""


@rule("2.2", "all-gather of every kind")
def check_all_gather_kinds(bench: Bench) -> None:
    """Objects of every kind come back to the last bit: type, dtype, order, sharing, NaN.

    Usually: arrays are rebuilt from their values, so that dtype, shape or memory order is lost;
    pickle the array. Integers travel as 64 bits, or text with an error handler that replaces
    what UTF-8 can't hold; pickle the object. Its parts are serialised one by one, so that what
    two of them share is there twice; serialise the whole object at once.
    """
    firsts = bench.share(range(len(KINDS)))
    trials = [_gathering(KINDS[first:] + KINDS[:first], bench.world_size) for first in firsts]
    bench.expect(sequence, trials)


@rule("2.3", "all-gather sizes")
def check_all_gather_sizes(bench: Bench) -> None:
    """Payloads may have any sizes, and the largest may be on any rank.

    Usually: payloads are padded to the longest and the padding is not taken off, or is taken
    off by stripping zeros; send the length of each payload in 64 bits, and cut there. Or a
    payload is received in a buffer of another one's size; gather the lengths first.
    """
    world = bench.world_size
    sent: list[list[Any]] = [[*payloads(world, *each)] for each in sizes_on_ranks(bench)]
    # The memory of an array may travel as it is, so that its length is that on the wire.
    for number, size in enumerate(SIZES):
        array = (np.arange(size) % 251 + 1).astype(np.uint8)  # it ends with no zero
        sent.append([array if rank == number % world else rank for rank in range(world)])
    bench.expect(sequence, [trial_of([Collective(each)]) for each in sent])


@rule("2.4", "all-gather of large objects")
def check_all_gather_large(bench: Bench) -> None:
    """One rank may send 33 to 64 MiB while the others send next to nothing, or all up to 40 MiB.

    Usually: each rank sends before any receives, and the buffers of the connections are full;
    send in a thread of its own, or let every second rank receive first. Pieces of an object are
    put at a wrong place; send with each whose it is and where it begins. A length does not fit
    into 32 bits. Or the machine is too slow for the timeout; give a longer one with --timeout.
    """
    if bench.is_larger and bench.world_size < max(bench.sizes):
        raise NotApplicableError("large objects are sent by the fewest ranks and by the most")
    world = bench.world_size
    sent = [payloads(world, large(world), world - 1)]
    if world > 1:
        size = large_of_each(world, bench.is_smallest)
        sent.append([Payload(size + rank, rank) for rank in range(world)])
    patience = _SECONDS_PER_RANK * world  # each rank gets what all of them pad to the largest
    bench.expect(sequence, [trial_of([Collective(each)]) for each in sent], patience)


def sizes_on_ranks(bench: Bench) -> list[tuple[int, int]]:
    """Return sizes, each with every rank; with one rank where a smaller world tries them all."""
    ranks = range(bench.world_size)
    if bench.is_larger:
        return [(size, number % len(ranks)) for number, size in enumerate(SIZES)]
    return [*itertools.product(SIZES, ranks)]


def _gathering(objects: list[Any], world: int) -> Trial:
    return trial_of([Collective([objects[rank % len(objects)] for rank in range(world)])])
