"""Causes of results that are not copies: which of them share memory, or show later changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from disteval.conformance.causes.calls import INPUT_CHANGED
from disteval.conformance.objects import CHANGE, changed
from disteval.conformance.seen import Difference, Seen, explains, same

OWN_ENTRY = (
    "the rank's own entry of an all-gather is the object that it passed; put a copy there, for "
    "example of its pickled bytes"
)
OWN_BROADCAST = (
    "a broadcast returns on rank src the object that it was given; return a copy, for example of "
    "the pickled bytes"
)
DECODED_ONCE = (
    "equal objects of several ranks are rebuilt once and are one object then; rebuild each entry"
)
REUSED = (
    "a result shares memory with that of an earlier call, from a buffer or a cache; return new "
    "objects from each call"
)
SHARED_BY_RANKS = "ranks of one process get the same object; rebuild the object on each rank"
CACHED = (
    "an old copy of an object that has changed since is sent, as from a cache by identity; "
    "serialise the object in each call"
)
SENT_LATE = (
    "an object is read after the call has returned, as by a send that nobody waits for; serialise "
    "it first, or wait until it was sent"
)


def sharing(seen: Seen) -> str:
    """Recognise which objects of rule 4.1 share memory: the input comes first, then the results.

    The facts of each difference are the process and the places in memory of each object. The
    results are two all-gathers and two broadcasts.
    """
    world = seen.world_size
    call = world + 1
    places = [
        (difference.rank, index, {(process, place) for place in found})
        for difference in _one_trial(seen)
        for process, of_each in [difference.wrong.facts]
        for index, found in enumerate(of_each)
    ]
    found = set()
    for (rank, i, mine), (other, j, its) in combinations(places, 2):
        if mine & its and rank != other:
            found.add(SHARED_BY_RANKS)
        elif mine & its and i == 0:
            found.add(OWN_BROADCAST if j % call == 0 else OWN_ENTRY)
        elif mine & its:
            found.add(DECODED_ONCE if (i - 1) // call == (j - 1) // call else REUSED)
    order = (SHARED_BY_RANKS, OWN_ENTRY, OWN_BROADCAST, REUSED, DECODED_ONCE)
    if not found:
        inputs = all(d.got and not same(d.got[0], d.expected[0]) for d in seen.shown)
        return INPUT_CHANGED if seen.shown and inputs else ""
    return next(cause for cause in order if cause in found)


def _one_trial(seen: Seen) -> Iterator[Difference]:
    return (difference for difference in seen.shown if difference.wrong.facts)


def moment(seen: Seen) -> str:
    """Recognise results of rule 4.2 that show the input as it was earlier or later."""

    def test(cause: str) -> bool:
        def explained(difference: Difference) -> bool:
            found = list(_moments(difference, seen.world_size))
            return bool(found) and all(cause == each for each in found)

        return explains(seen, explained)

    causes = (OWN_ENTRY, OWN_BROADCAST, SENT_LATE, CACHED)
    return next((cause for cause in causes if test(cause)), "")


def _moments(difference: Difference, world: int) -> Iterator[str]:
    """Return what each wrong result of rule 4.2 shows: the input changes after each collective."""
    kind, src, _ = difference.arg
    senders = [[src], [*range(world)]] * 2
    then = [(number, sender) for number, each in enumerate(senders) for sender in each]
    for got, (number, sender) in zip(difference.got or (), then, strict=True):
        marks = [when for when in range(5) if same(got, changed(kind, sender, *[CHANGE] * when))]
        if marks == [4] and sender == difference.rank:  # it changes with the input to the end
            yield OWN_ENTRY if number % 2 else OWN_BROADCAST
        elif marks != [number]:
            yield "" if not marks else SENT_LATE if marks[0] > number else CACHED
