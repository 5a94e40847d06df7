"""Rules 3.1 to 3.5: the broadcast."""

from __future__ import annotations

from typing import Any

from disteval.conformance.bench import Bench
from disteval.conformance.collectives import Collective, payloads, raises, sequence, trial_of
from disteval.conformance.objects import KINDS, large
from disteval.conformance.rule import NotApplicableError, Trial, rule
from disteval.conformance.rules.errors import CannotBePickled
from disteval.conformance.rules.gather import sizes_on_ranks
from disteval.contract import BaseDistBackend


@rule("3.1", "broadcast", draws="BROADCASTS")
def check_broadcast(bench: Bench) -> None:
    """On every rank, a broadcast gives the object of rank src, of any kind and for every src.

    Usually: the broadcast always takes the object of rank 0; give src to the library's
    broadcast as its root, in the numbers in which the library counts ranks. Or ranks other than
    src return the object that they passed, or None; return what was received from src, on every
    rank.
    """
    from disteval.conformance.drawing import BROADCASTS, each  # ranks need no Hypothesis

    def trial(drawn: tuple[Any, Any, int], world: int) -> Trial:
        sent, other, src = drawn
        src %= world
        objects = [sent if rank == src else other for rank in range(world)]
        return trial_of([Collective(objects, src)])

    other = "the object of another rank than src"
    sent = enumerate(bench.share(KINDS))
    kinds = [trial((kind, other, src), bench.world_size) for src, kind in sent]
    bench.expect(sequence, kinds)
    each(bench, sequence, BROADCASTS, trial)


@rule("3.2", "broadcast sizes")
def check_broadcast_sizes(bench: Bench) -> None:
    """A payload of any size can be broadcast from every rank.

    Usually: ranks other than src receive in a buffer of another size than that of the payload,
    such as the size of their own; broadcast the length first, in 64 bits, and cut there.
    """
    trials = [
        trial_of([Collective(payloads(bench.world_size, size, src), src)])
        for size, src in sizes_on_ranks(bench)
    ]
    bench.expect(sequence, trials)


@rule("3.3", "only src's argument counts")
def check_broadcast_ignores_others(bench: Bench) -> None:
    """What ranks other than src pass to a broadcast is ignored, also if it can't be sent.

    Usually: ranks other than src serialise what they pass, or take the length of it; do both on
    src alone.
    """
    world = bench.world_size
    example = "src {}; the others pass an object that can't be pickled, or a larger one"
    trials = [Trial([src] * world, [["sent"]] * world, example.format(src)) for src in range(world)]
    for trial in trials:  # ranks that part at an error do not meet in the next one
        bench.expect(broadcast_beside_junk, [trial])


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
    for trial in trials:
        bench.expect(broadcast_from_nowhere, [trial])


@rule("3.5", "broadcast of one large object")
def check_broadcast_large(bench: Bench) -> None:
    """A rank may broadcast 33 to 64 MiB.

    Usually: a length does not fit into 32 bits, or pieces of the object are put at a wrong
    place; send lengths in 64 bits, and with each piece where it begins. Or less than all is
    received; repeat the library's receive until all bytes are there.
    """
    if bench.is_larger:
        raise NotApplicableError("a large object is broadcast on fewer ranks")
    last = bench.world_size - 1
    sent = payloads(bench.world_size, large(bench.world_size), last)
    bench.expect(sequence, [trial_of([Collective(sent, last)])])


def broadcast_beside_junk(backend: BaseDistBackend, src: int) -> list[Any]:
    """Broadcast while the other ranks pass an object that can't be pickled, or a larger one."""
    junk = CannotBePickled() if backend.rank % 2 else bytes(100_000)
    return [backend.broadcast_object("sent" if backend.rank == src else junk, src)]


def broadcast_from_nowhere(backend: BaseDistBackend, src: int) -> list[Any]:
    """Return whether a broadcast from no rank raised an error, and the next result."""
    return [
        raises(backend.broadcast_object, 0, src),
        backend.all_gather_object((src, backend.rank)),
    ]
