"""The checks of rules 1, 2, 3 and 8; the first line of each docstring is the rule.

A check takes a `Bench` and raises `BrokenRuleError`. You can also call it on a `World` of your own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from disteval.conformance import on_ranks
from disteval.conformance.causes.lists import LISTS, others_send
from disteval.conformance.causes.results import RESULTS
from disteval.conformance.causes.special import before_joining, identity
from disteval.conformance.drawing import OBJECTS, ONE_EACH, RANKS, each
from disteval.conformance.objects import ARRAYS, SIZES, SPECIAL, as_sent, large, large_of_each
from disteval.conformance.rules import Bench, BrokenRuleError, LostWorld, Trial, rule
from disteval.conformance.trials import Collective, trial_of
from disteval.conformance.world import identity_of

# The leader sends each rank its object first, so that a view arrives as a copy.
_KINDS = [as_sent(obj) for obj in (*SPECIAL, *ARRAYS)]
_OTHER = "the object of another rank than src"
_BROADCASTS = st.tuples(OBJECTS, OBJECTS, RANKS)
_MODES = st.sampled_from(["strided", "contiguous"])
_DATA_SETS = st.tuples(st.integers(0, 40), _MODES, st.booleans(), st.integers(1, 9))


@rule("1.1", "identity", causes=[identity])
def check_identity(bench: Bench) -> None:
    """Ranks are exactly 0 to W-1, each once, all of one world size W, in a group if W is over 1."""
    world = bench.world_size
    found = bench.run(identity_of)
    for rank, (joined, own, size) in enumerate(found):
        if (own, size) != (rank, world) or (world > 1 and not joined):
            raise BrokenRuleError(
                f"rank {rank} of {world} says: rank {own}, world size {size}, "
                f"{'in a group' if joined else 'in no group'}",
                facts=found,
            )


@rule("1.2", "stable identity")
def check_stable_identity(bench: Bench) -> None:
    """Rank and world size stay what they are while collectives are called."""
    before = bench.run(identity_of)
    example = "the identity after each of 20 all-gathers"
    everywhere = [[identity] * 20 for identity in before]
    bench.expect(on_ranks.gather_and_identify, [Trial([20] * len(before), everywhere, example)])


@rule("1.3", "identity before joining", causes=[before_joining])
def check_identity_before(bench: Bench) -> None:
    """Before init_process a backend is rank 0 of 1, unless it is in its group already."""
    after = bench.run(identity_of)
    found = bench.worlds.get().before
    for rank, before in enumerate(found):
        if before not in ((False, 0, 1), after[rank]):
            raise BrokenRuleError(
                f"before init_process rank {rank} says (in a group, rank, world size): {before}; "
                f"afterwards: {after[rank]}",
                facts=found,
            )


@rule("2.1", "all-gather order", causes=RESULTS)
def check_all_gather(bench: Bench) -> None:
    """On every rank, entry r of an all-gather is rank r's object, to the last bit."""
    each(bench, on_ranks.sequence, ONE_EACH, _gathering)


@rule("2.2", "all-gather of every kind", causes=RESULTS)
def check_all_gather_kinds(bench: Bench) -> None:
    """Objects of every kind come back to the last bit: type, dtype, order, sharing, NaN."""
    trials = [
        _gathering(_KINDS[first:] + _KINDS[:first], bench.world_size)
        for first in range(len(_KINDS))
    ]
    bench.expect(on_ranks.sequence, trials)


@rule("2.3", "all-gather sizes", causes=RESULTS)
def check_all_gather_sizes(bench: Bench) -> None:
    """Payloads may have any sizes, and the largest may be on any rank."""
    ranks = range(bench.world_size)
    sent = [_payloads(bench, size, largest) for size in SIZES for largest in ranks]
    bench.expect(on_ranks.sequence, [trial_of([Collective(each)]) for each in sent])


@rule("2.4", "all-gather of large objects", causes=RESULTS)
def check_all_gather_large(bench: Bench) -> None:
    """One rank may send 33 to 64 MiB while the others send next to nothing, or all up to 40 MiB."""
    world = bench.world_size
    sent = [_payloads(bench, large(world), world - 1)]
    if world > 1:
        size = large_of_each(world, bench.worlds.is_smallest)
        sent.append([on_ranks.Payload(size + rank, rank) for rank in range(world)])
    bench.expect(on_ranks.sequence, [trial_of([Collective(each)]) for each in sent])


@rule("3.1", "broadcast", causes=RESULTS)
def check_broadcast(bench: Bench) -> None:
    """On every rank, a broadcast gives the object of rank src, of any kind and for every src."""

    def trial(drawn: tuple[Any, Any, int], world: int) -> Trial:
        sent, other, src = drawn
        src %= world
        objects = [sent if rank == src else other for rank in range(world)]
        return trial_of([Collective(objects, src)])

    kinds = [trial((kind, _OTHER, src), bench.world_size) for src, kind in enumerate(_KINDS)]
    bench.expect(on_ranks.sequence, kinds)
    each(bench, on_ranks.sequence, _BROADCASTS, trial)


@rule("3.2", "broadcast sizes", causes=RESULTS)
def check_broadcast_sizes(bench: Bench) -> None:
    """A payload of any size can be broadcast from every rank."""
    trials = [
        trial_of([Collective(_payloads(bench, size, src), src)])
        for size in SIZES
        for src in range(bench.world_size)
    ]
    bench.expect(on_ranks.sequence, trials)


@rule("3.3", "only src's argument counts", causes=[others_send, *RESULTS])
def check_broadcast_ignores_others(bench: Bench) -> None:
    """What ranks other than src pass to a broadcast is ignored, also if it can't be sent."""
    world = bench.world_size
    example = "src {}; the others pass an object that can't be pickled, or a larger one"
    trials = [Trial([src] * world, [["sent"]] * world, example.format(src)) for src in range(world)]
    works = [bench.run(on_ranks.works_before, [(src,)] * world) for src in range(world)]
    try:
        bench.expect(on_ranks.broadcast_beside_junk, trials)
    except (BrokenRuleError, LostWorld) as error:
        error.facts = all(map(all, works))
        raise


@rule("3.4", "src out of range", causes=LISTS)
def check_broadcast_src(bench: Bench) -> None:
    """A src that is not a rank is an error on every rank, and the next collective works."""
    world = bench.world_size
    example = f"src {{}} at world size {world}: whether it raised, and the next result"
    trials = []
    for src in (-1, world, world + 7):
        expected = [True, [(src, rank) for rank in range(world)]]
        trials.append(Trial([src] * world, [expected] * world, example.format(src)))
    bench.expect(on_ranks.broadcast_from_nowhere, trials)


@rule("3.5", "broadcast of one large object", causes=RESULTS)
def check_broadcast_large(bench: Bench) -> None:
    """A rank may broadcast 33 to 64 MiB."""
    last = bench.world_size - 1
    sent = _payloads(bench, large(bench.world_size), last)
    bench.expect(on_ranks.sequence, [trial_of([Collective(sent, last)])])


@rule("8.1", "exactly once")
def check_counting(bench: Bench) -> None:
    """Metrics over this backend count every sample once, and equal those of one process exactly."""

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
