"""The checks of rule 5: many collectives in a row give the results that the checks expect."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from disteval.conformance import on_ranks
from disteval.conformance.causes import Seen, explains
from disteval.conformance.drawing import MOST_RANKS, OBJECTS, each
from disteval.conformance.rules import Bench, BrokenRuleError, Trial, rule
from disteval.conformance.trials import Collective, trial_of
from disteval.conformance.wrong import Difference, same

LATE_SECONDS = (0.01, 0.1, 1.0)
"""The seconds by which ranks are late at a collective in rule 5.2."""

_SLIGHTLY_LATE_SECONDS = 0.002
_WARM_UP_CALLS = 10
_CALLS = 50
# The caches of an interpreter may grow by so many bytes over a few hundred calls.
_SPARE_BYTES = 8 << 20

# Each rank sends its number and one of the objects; the others are the source and who comes late.
_NOBODY_OR_RANK = st.sampled_from([*[None] * MOST_RANKS, *range(MOST_RANKS)])
_STEPS = st.lists(
    st.tuples(st.lists(OBJECTS, min_size=1, max_size=2), _NOBODY_OR_RANK, _NOBODY_OR_RANK),
    min_size=2,
    max_size=8,
)
STATE_OF_OBJECTS = (
    "each backend object has buffers or numbers of its own, while all of them share one group; "
    "keep that state once for the group"
)


def state_of_objects(seen: Seen) -> str:
    """Recognise results of rule 5.4 that belong to another object or call, of whichever rank.

    The first six results are of one object, before there are others: with it all must be right.
    """
    if any("collectives are mispaired" in str(error) for error in seen.errors.values()):
        return STATE_OF_OBJECTS

    def mixed(difference: Difference) -> bool:
        got, expected = difference.got or [], difference.expected
        sent = [entry for result in expected for entry in _entries(result)]
        return all(map(same, got[:6], expected[:6])) and all(
            entry in sent for result in got for entry in _entries(result)
        )

    return STATE_OF_OBJECTS if explains(seen, mixed) else ""


def _entries(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


@rule("5.1", "sequences")
def check_sequences(bench: Bench) -> None:
    """Any interleaving of collectives, objects and sources keeps its pairing and its results.

    Usually: what was sent in one call is received in another; let no rank begin its next call
    while another still reads this one's, and tag messages with the number of the call. Or a
    buffer, a cache or a list is used again by a later call; receive into new memory, and return
    a new list.
    """

    def trial(steps: list[tuple[list[Any], int | None, int | None]], world: int) -> Trial:
        return trial_of(
            Collective(
                [(rank, drawn[rank % len(drawn)]) for rank in range(world)],
                None if src is None else src % world,
                {} if late is None else {late % world: _SLIGHTLY_LATE_SECONDS},
            )
            for drawn, src, late in steps
        )

    each(bench, on_ranks.sequence, _STEPS, trial)


@rule("5.2", "late ranks")
def check_late_ranks(bench: Bench) -> None:
    """Ranks that arrive 10 ms, 100 ms or 1 s late at a collective change no result.

    Usually: the object of a rank that comes late is not awaited, as with a poll or a wait that
    ends too early without an error; wait until Rendezvous.timeout, and raise an error after
    that. Or a rank that is early begins its next call while another still reads this one's.
    """
    world = bench.world_size
    last = world - 1
    sent = [("late", rank) for rank in range(world)]
    odd, even, others = range(1, world, 2), range(0, world, 2), range(1, world)
    trials = []
    for seconds in LATE_SECONDS if last else LATE_SECONDS[:1]:  # one rank waits for no other
        # Every rank is late at one of two all-gathers. Of the broadcasts, the source comes late to
        # one and everybody else comes late to the other.
        for ranks, src in ((odd, None), (even, None), ((last,), last), (others, 0)):
            late = dict.fromkeys(ranks, seconds)
            trials.append(trial_of([Collective(sent, src, late), Collective(sent)]))
    bench.expect(on_ranks.sequence, trials, LATE_SECONDS[-1])


@rule("5.3", "no leaks", tries=3, process_wide=True)
def check_leaks(bench: Bench) -> None:
    """A hundred calls leave no file descriptor, no thread and no memory behind.

    Usually: files or sockets are opened and left open, threads are started that do not end, or
    bytes such as results and buffers are kept; close, join or drop them when the call returns,
    or keep one of each for all calls.
    """
    before = bench.run(on_ranks.resources, [_WARM_UP_CALLS] * bench.world_size)
    after = bench.run(on_ranks.resources, [_CALLS] * bench.world_size)
    for rank, (was, now) in enumerate(zip(before, after, strict=True)):
        # A library's own threads may add a few, but no call may leave one behind.
        grew = now[0] > was[0] + 5, now[1] > was[1] + 5, now[2] > was[2] + _SPARE_BYTES
        if any(grew):
            raise BrokenRuleError(
                f"rank {rank} went from {was} to {now} (file descriptors, threads, bytes) "
                f"over {2 * _CALLS} collectives",
            )


@rule("5.4", "several objects", cause=state_of_objects)
def check_several_objects(bench: Bench) -> None:
    """Collectives of several objects of one backend class keep their pairing and their results.

    Usually: each object has buffers, connections or numbers of calls of its own, while all of
    them share one group; keep that state once for the group.
    """
    world = bench.world_size
    trials = []
    for src in {0, world - 1}:
        expected: list[Any] = [[(call, rank) for rank in range(world)] for call in range(3)]
        expected += [(call, src) for call in range(3)]
        for turn in range(4):
            objects = range(2 if turn < 2 else 3)
            expected += [[(turn, index, rank) for rank in range(world)] for index in objects]
            expected += [(turn, index, src) for index in objects]
        everywhere = [[*expected, [(rank, world)] * 3] for rank in range(world)]
        example = (
            f"each rank creates three backend objects; all gather, then all broadcast from {src}"
        )
        trials.append(Trial([src] * world, everywhere, example))
    bench.expect(on_ranks.use_several_objects, trials)
