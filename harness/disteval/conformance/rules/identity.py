"""Rules 1.1 to 1.3: who a rank is."""

from __future__ import annotations

from typing import Any

from disteval.conformance.bench import Bench
from disteval.conformance.rule import BrokenRuleError, Trial, rule
from disteval.conformance.world import identity_of
from disteval.contract import BaseDistBackend


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
                f"{'in a group' if joined else 'in no group'}"
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
    bench.expect(gather_and_identify, [Trial([20] * len(before), everywhere, example)])


@rule("1.3", "identity before joining")
def check_identity_before(bench: Bench) -> None:
    """Before init_process a backend is rank 0 of 1, unless it is in its group already.

    Usually: the constructor needs the group, which is joined later; use the group when a method
    is called. Or is_initialized does not ask whether this process has joined; return false
    until init_process has succeeded.
    """
    after = bench.run(identity_of)
    found = bench.world.before
    for rank, before in enumerate(found):
        if before not in ((False, 0, 1), after[rank]):
            raise BrokenRuleError(
                f"before init_process rank {rank} says (in a group, rank, world size): {before}; "
                f"afterwards: {after[rank]}"
            )


def gather_and_identify(backend: BaseDistBackend, calls: int) -> list[Any]:
    """Return the rank and the world size after each of so many all-gathers."""
    identities = []
    for call in range(calls):
        backend.all_gather_object(call)
        identities.append(identity_of(backend))
    return identities
