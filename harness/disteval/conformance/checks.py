"""The checks of rules 1, 2, 3 and 8; the first line of each docstring is the rule.

A check takes a `Bench` and raises `BrokenRuleError`. You can also call it on a `World` of your own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from disteval.conformance import on_ranks
from disteval.conformance.drawing import OBJECTS, ONE_EACH, RANKS, each
from disteval.conformance.objects import ARRAYS, SIZES, SPECIAL, as_sent, large, large_of_each
from disteval.conformance.rules import Bench, BrokenRuleError, Trial, rule
from disteval.conformance.trials import Collective, trial_of
from disteval.conformance.world import identity_of

# The leader sends each rank its object first, so that a view arrives as a copy.
_KINDS = [as_sent(obj) for obj in (*SPECIAL, *ARRAYS)]
_OTHER = "the object of another rank than src"
_BROADCASTS = st.tuples(OBJECTS, OBJECTS, RANKS)
_MODES = st.sampled_from(["strided", "contiguous"])
_DATA_SETS = st.tuples(st.integers(0, 40), _MODES, st.booleans(), st.integers(1, 9))


@rule("1.1", "identity")
def check_identity(bench: Bench) -> None:
    """Ranks are exactly 0 to W-1, each once, all of one world size W, in a group if W is over 1.

    Usually: init_process does not join the library's group, so that every rank says 0 of 1; it
    has to pass on the rank and the world size that it is given. Rank and world size are
    swapped, or ranks are counted from 1. They come from a variable of the environment or of the
    class, which is the same for all processes; use what init_process is given, and return
    integers.
    """
    world = bench.world_size
    found = bench.run(identity_of)
    for rank, (joined, own, size) in enumerate(found):
        if (own, size) != (rank, world) or (world > 1 and not joined):
            raise BrokenRuleError(
                f"rank {rank} of {world} says: rank {own}, world size {size}, "
                f"{'in a group' if joined else 'in no group'}",
            )


@rule("1.2", "stable identity")
def check_stable_identity(bench: Bench) -> None:
    """Rank and world size stay what they are while collectives are called.

    Usually: rank or world_size is read from something that a collective changes, such as a
    counter or a buffer; keep both as init_process was given them, or ask the library.
    """
    before = bench.run(identity_of)
    example = "the identity after each of 20 all-gathers"
    everywhere = [[identity] * 20 for identity in before]
    bench.expect(on_ranks.gather_and_identify, [Trial([20] * len(before), everywhere, example)])


@rule("1.3", "identity before joining")
def check_identity_before(bench: Bench) -> None:
    """Before init_process a backend is rank 0 of 1, unless it is in its group already.

    Usually: the constructor needs the group, which is joined later; use the group when a method
    is called. Or is_initialized does not ask whether this process has joined; return false
    until init_process has succeeded.
    """
    after = bench.run(identity_of)
    found = bench.worlds.get().before
    for rank, before in enumerate(found):
        if before not in ((False, 0, 1), after[rank]):
            raise BrokenRuleError(
                f"before init_process rank {rank} says (in a group, rank, world size): {before}; "
                f"afterwards: {after[rank]}",
            )


@rule("2.1", "all-gather order")
def check_all_gather(bench: Bench) -> None:
    """On every rank, entry r of an all-gather is rank r's object, to the last bit.

    Usually: objects stand in the order in which they arrive; put that of rank r at index r. A
    rank's own object is left out, or stands in the place of another's; fill the list from what
    was received, and put a copy of its own there. Only one rank has the list, as after a gather
    to a root; call the library's all-gather. What is returned is no list, or holds lists of
    one; return list(…) of it, and send the object itself.
    """
    each(bench, on_ranks.sequence, ONE_EACH, _gathering)


@rule("2.2", "all-gather of every kind")
def check_all_gather_kinds(bench: Bench) -> None:
    """Objects of every kind come back to the last bit: type, dtype, order, sharing, NaN.

    Usually: arrays are rebuilt from their values, so that dtype, shape or memory order is lost;
    pickle the array. Integers travel as 64 bits, or text with an error handler that replaces
    what UTF-8 can't hold; pickle the object. Its parts are serialised one by one, so that what
    two of them share is there twice; serialise the whole object at once.
    """
    trials = [
        _gathering(_KINDS[first:] + _KINDS[:first], bench.world_size)
        for first in range(len(_KINDS))
    ]
    bench.expect(on_ranks.sequence, trials)


@rule("2.3", "all-gather sizes")
def check_all_gather_sizes(bench: Bench) -> None:
    """Payloads may have any sizes, and the largest may be on any rank.

    Usually: payloads are padded to the longest and the padding is not taken off, or is taken
    off by stripping zeros; send the length of each payload in 64 bits, and cut there. Or a
    payload is received in a buffer of another one's size; gather the lengths first.
    """
    ranks = range(bench.world_size)
    sent = [_payloads(bench, size, largest) for size in SIZES for largest in ranks]
    bench.expect(on_ranks.sequence, [trial_of([Collective(each)]) for each in sent])


@rule("2.4", "all-gather of large objects")
def check_all_gather_large(bench: Bench) -> None:
    """One rank may send 33 to 64 MiB while the others send next to nothing, or all up to 40 MiB.

    Usually: each rank sends before any receives, and the buffers of the connections are full;
    send in a thread of its own, or let every second rank receive first. Pieces of an object are
    put at a wrong place; send with each whose it is and where it begins. A length does not fit
    into 32 bits. Or the machine is too slow for the timeout; give a longer one with --timeout.
    """
    world = bench.world_size
    sent = [_payloads(bench, large(world), world - 1)]
    if world > 1:
        size = large_of_each(world, bench.worlds.is_smallest)
        sent.append([on_ranks.Payload(size + rank, rank) for rank in range(world)])
    bench.expect(on_ranks.sequence, [trial_of([Collective(each)]) for each in sent])


@rule("3.1", "broadcast")
def check_broadcast(bench: Bench) -> None:
    """On every rank, a broadcast gives the object of rank src, of any kind and for every src.

    Usually: the broadcast always takes the object of rank 0; give src to the library's
    broadcast as its root, in the numbers in which the library counts ranks. Or ranks other than
    src return the object that they passed, or None; return what was received from src, on every
    rank.
    """

    def trial(drawn: tuple[Any, Any, int], world: int) -> Trial:
        sent, other, src = drawn
        src %= world
        objects = [sent if rank == src else other for rank in range(world)]
        return trial_of([Collective(objects, src)])

    kinds = [trial((kind, _OTHER, src), bench.world_size) for src, kind in enumerate(_KINDS)]
    bench.expect(on_ranks.sequence, kinds)
    each(bench, on_ranks.sequence, _BROADCASTS, trial)


@rule("3.2", "broadcast sizes")
def check_broadcast_sizes(bench: Bench) -> None:
    """A payload of any size can be broadcast from every rank.

    Usually: ranks other than src receive in a buffer of another size than that of the payload,
    such as the size of their own; broadcast the length first, in 64 bits, and cut there.
    """
    trials = [
        trial_of([Collective(_payloads(bench, size, src), src)])
        for size in SIZES
        for src in range(bench.world_size)
    ]
    bench.expect(on_ranks.sequence, trials)


@rule("3.3", "only src's argument counts")
def check_broadcast_ignores_others(bench: Bench) -> None:
    """What ranks other than src pass to a broadcast is ignored, also if it can't be sent.

    Usually: ranks other than src serialise what they pass, or take the length of it; do both on
    src alone.
    """
    world = bench.world_size
    example = "src {}; the others pass an object that can't be pickled, or a larger one"
    trials = [Trial([src] * world, [["sent"]] * world, example.format(src)) for src in range(world)]
    bench.expect(on_ranks.broadcast_beside_junk, trials)


@rule("3.4", "src out of range")
def check_broadcast_src(bench: Bench) -> None:
    """A src that is not a rank is an error on every rank, and the next collective works.

    Usually: src is not looked at before ranks communicate, so that one rank fails and the
    others wait; compare it with the world size first, on every rank, and raise an error.
    Negative numbers must not count from the end.
    """
    world = bench.world_size
    example = f"src {{}} at world size {world}: whether it raised, and the next result"
    trials = []
    for src in (-1, world, world + 7):
        expected = [True, [(src, rank) for rank in range(world)]]
        trials.append(Trial([src] * world, [expected] * world, example.format(src)))
    bench.expect(on_ranks.broadcast_from_nowhere, trials)


@rule("3.5", "broadcast of one large object")
def check_broadcast_large(bench: Bench) -> None:
    """A rank may broadcast 33 to 64 MiB.

    Usually: a length does not fit into 32 bits, or pieces of the object are put at a wrong
    place; send lengths in 64 bits, and with each piece where it begins. Or less than all is
    received; repeat the library's receive until all bytes are there.
    """
    last = bench.world_size - 1
    sent = _payloads(bench, large(bench.world_size), last)
    bench.expect(on_ranks.sequence, [trial_of([Collective(sent, last)])])


@rule("8.1", "exactly once")
def check_counting(bench: Bench) -> None:
    """Metrics over this backend count every sample once, and equal those of one process exactly.

    Usually: entries of an all-gather are in another order than that of the ranks, or empty
    lists are lost or skipped; rules 2.1 and 2.2 show it on smaller examples.
    """

    def trial(task: tuple[int, str, bool, int], world: int) -> Trial:
        size = task[0]
        samples = np.arange(size)
        scores, labels = on_ranks.scores_and_labels(samples)
        best = (scores > scores[samples, labels, None]).sum(axis=1)
        ties = [(scores[i, : labels[i]] == scores[i, labels[i]]).sum() for i in range(size)]
        places = best + np.array(ties, dtype=int)
        right = {f"top{k}": int((places < k).sum()) for k in (1, 2)}
        accuracy = {key: count / size for key, count in right.items()} if size else None
        if accuracy is not None:
            accuracy |= {f"correct_{key}": count for key, count in right.items()} | {"size": size}
        example = "{} samples, {}, padded: {}, batches of {}".format(*task)
        return Trial([task] * world, [[list(range(size)), accuracy]] * world, example)

    each(bench, on_ranks.count_samples, _DATA_SETS, trial)


def _gathering(objects: list[Any], world: int) -> Trial:
    return trial_of([Collective([objects[rank % len(objects)] for rank in range(world)])])


def _payloads(bench: Bench, size: int, largest: int) -> list[on_ranks.Payload]:
    """Let one rank send so many bytes, while the others send as many bytes as their rank."""
    ranks = range(bench.world_size)
    return [on_ranks.Payload(size if rank == largest else rank) for rank in ranks]
