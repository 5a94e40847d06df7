"""The checks of rules 1, 2, 3 and 8; the first line of each docstring is the rule.

A check takes a `Bench` and raises `BrokenRuleError`. You can also call it on a `World` of your own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from disteval.conformance import on_ranks
from disteval.conformance.drawing import each, one_each
from disteval.conformance.fingerprint import see
from disteval.conformance.objects import ARRAYS, LARGE, SIZES, SPECIAL, as_sent
from disteval.conformance.rules import Bench, BrokenRuleError, NotApplicableError, rule
from disteval.conformance.sequences import listed
from disteval.conformance.world import JudgedWorld, identity_of


@rule("1.1", "identity")
def check_identity(bench: Bench) -> None:
    """Ranks are exactly 0 to W-1, each once, all of one world size W, in a group if W is over 1."""
    world = bench.world_size
    for rank, (joined, own, size) in enumerate(bench.run(identity_of)):
        if (own, size) != (rank, world) or (world > 1 and not joined):
            raise BrokenRuleError(
                f"rank {rank} of {world} says: rank {own}, world size {size}, "
                f"{'in a group' if joined else 'in no group'}"
            )


@rule("1.2", "stable identity")
def check_stable_identity(bench: Bench) -> None:
    """Rank and world size stay what they are while collectives are called."""
    before = bench.run(identity_of)
    for turn in range(20):
        bench.run(on_ranks.gather, [turn] * bench.world_size)
        after = bench.run(identity_of)
        if after != before:
            raise BrokenRuleError(
                f"identities were {before}, and are {after} after {turn + 1} calls"
            )


@rule("1.3", "identity before joining")
def check_identity_before(bench: Bench) -> None:
    """Before init_process a backend is rank 0 of 1, unless it is in its group already."""
    if not isinstance(bench.world, JudgedWorld):
        raise NotApplicableError(
            "the identity before joining is not known in a plain World; use a JudgedWorld"
        )
    after = bench.run(identity_of)
    for rank, before in enumerate(bench.world.before):
        if before not in ((False, 0, 1), after[rank]):
            raise BrokenRuleError(
                f"before init_process rank {rank} says (in a group, rank, world size): {before}; "
                f"afterwards: {after[rank]}"
            )


@rule("2.1", "all-gather order")
def check_all_gather(bench: Bench) -> None:
    """On every rank, entry r of an all-gather is rank r's object, to the last bit."""
    world = bench.world_size

    def check(sent: list[Any]) -> None:
        expected = [[see(obj) for obj in sent]] * world
        bench.expect(on_ranks.gather, sent, expected, f"ranks send {listed(sent)}")

    each(bench, one_each(world), check)


@rule("2.2", "all-gather of every kind")
def check_all_gather_kinds(bench: Bench) -> None:
    """Objects of every kind come back to the last bit: type, dtype, order, sharing, NaN."""
    world = bench.world_size
    kinds = [*SPECIAL, *ARRAYS]
    for first in range(len(kinds)):
        sent = [kinds[(first + rank) % len(kinds)] for rank in range(world)]
        # The leader sends each rank its object first, so that a view arrives as a copy.
        expected = [[see(as_sent(obj)) for obj in sent]] * world
        bench.expect(on_ranks.gather, sent, expected, f"ranks send {listed(sent)}")


@rule("2.3", "all-gather sizes")
def check_all_gather_sizes(bench: Bench) -> None:
    """Payloads may have any sizes, and the largest may be on any rank."""
    for size in SIZES:
        for largest in range(bench.world_size):
            _gather_bytes(bench, size, largest)


@rule("2.4", "all-gather of one large object")
def check_all_gather_large(bench: Bench) -> None:
    """One rank may send 64 MiB while the others send next to nothing."""
    _gather_bytes(bench, LARGE, bench.world_size - 1)


@rule("3.1", "broadcast")
def check_broadcast(bench: Bench) -> None:
    """On every rank, a broadcast gives the object of rank src, for every src."""
    world = bench.world_size

    def check(drawn: tuple[list[Any], int]) -> None:
        sent, src = drawn
        tasks = [(obj, src) for obj in sent]
        expected = [see(sent[src])] * world
        bench.expect(on_ranks.broadcast, tasks, expected, f"src {src}; ranks pass {listed(sent)}")

    each(bench, st.tuples(one_each(world), st.integers(0, world - 1)), check)


@rule("3.2", "broadcast sizes")
def check_broadcast_sizes(bench: Bench) -> None:
    """A payload of any size can be broadcast from every rank."""
    for size in SIZES:
        for src in range(bench.world_size):
            _broadcast_bytes(bench, size, src)


@rule("3.3", "only src's argument counts")
def check_broadcast_ignores_others(bench: Bench) -> None:
    """What ranks other than src pass to a broadcast is ignored, also if it can't be sent."""
    world = bench.world_size
    for src in range(world):
        bench.expect(
            on_ranks.broadcast_beside_junk,
            [src] * world,
            [see("sent")] * world,
            f"src {src}; the others pass an object that can't be pickled, or a larger one",
        )


@rule("3.4", "src out of range")
def check_broadcast_src(bench: Bench) -> None:
    """A src that is not a rank is an error on every rank, and the next collective works."""
    world = bench.world_size
    for src in (-1, world, world + 7):
        expected = [(True, see(list(range(world))))] * world
        example = f"src {src} at world size {world}: whether it raised, and the next result"
        bench.expect(on_ranks.broadcast_from_nowhere, [src] * world, expected, example)


@rule("3.5", "broadcast of one large object")
def check_broadcast_large(bench: Bench) -> None:
    """A rank may broadcast 64 MiB."""
    _broadcast_bytes(bench, LARGE, bench.world_size - 1)


@rule("8.1", "exactly once")
def check_counting(bench: Bench) -> None:
    """Metrics over this backend count every sample once, and equal those of one process exactly."""
    world = bench.world_size

    def check(task: tuple[int, str, bool, int]) -> None:
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
        expected = [see((list(range(size)), accuracy))] * world
        example = "{} samples, {}, padded: {}, batches of {}".format(*task)
        bench.expect(on_ranks.count_samples, [task] * world, expected, example)

    each(
        bench,
        st.tuples(
            st.integers(0, 40),
            st.sampled_from(["strided", "contiguous"]),
            st.booleans(),
            st.integers(1, 9),
        ),
        check,
    )


def _gather_bytes(bench: Bench, size: int, largest: int) -> None:
    """Let one rank send so many bytes, while the others send as many bytes as their rank."""
    world = bench.world_size
    sizes = [size if rank == largest else rank for rank in range(world)]
    expected = [[see(on_ranks.payload(n)) for n in sizes]] * world
    bench.expect(on_ranks.gather_bytes, sizes, expected, f"ranks send bytes of {sizes}")


def _broadcast_bytes(bench: Bench, size: int, src: int) -> None:
    """Let one rank broadcast so many bytes, while the others pass as many bytes as their rank."""
    world = bench.world_size
    tasks = [(size if rank == src else rank, src) for rank in range(world)]
    expected = [see(on_ranks.payload(size))] * world
    bench.expect(on_ranks.broadcast_bytes, tasks, expected, f"src {src} sends {size} bytes")
