"""Causes of results that belong to another call, and of inputs that a call has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disteval.conformance.causes.lists import pairs
from disteval.conformance.fingerprint import Gathered, describe
from disteval.conformance.seen import Difference, Seen, explains, same
from disteval.conformance.trials import Collective

INPUT_CHANGED = (
    "the collective changes the object that it is given; work on a copy, or on the pickled bytes"
)
STALE = (
    "objects of an earlier call are returned, from a buffer or a cache that was not renewed; "
    "receive into new memory in each call"
)
OVERWRITTEN = (
    "a later call writes into the result of an earlier one, because both are the same list; return "
    "a new list from each call"
)
MISPAIRED = (
    "what was sent in one call is received in another; let no rank begin its next call while "
    "another still reads this one's, and tag messages with the number of the call"
)
NOT_AWAITED = (
    "the object of a rank that comes late is not awaited, as with a poll or a wait that ends too "
    "early without an error; wait until Rendezvous.timeout, and raise an error after that"
)

_TRIVIAL = 6
"""Descriptions this short are of objects, such as 0 and None, that occur by chance."""


def input_changed(seen: Seen) -> str:
    """Recognise an argument that is another one after the call."""
    return INPUT_CHANGED if any(d.wrong.input_changed for d in seen.shown) else ""


def mispaired(seen: Seen) -> str:
    """Recognise the error with which frames of another call are refused."""
    found = [e for e in seen.errors.values() if "collectives are mispaired" in str(e)]
    return MISPAIRED if found else ""


def overwritten(seen: Seen) -> str:
    """Recognise earlier results that have become equal to later ones."""

    def from_later(difference: Difference) -> bool:
        expected = difference.expected
        assert difference.got is not None
        wrong = [(i, got) for i, got in enumerate(difference.got) if not same(got, expected[i])]
        return bool(wrong) and all(
            type(got) is Gathered and any(same(got, later) for later in expected[i + 1 :])
            for i, got in wrong
        )

    return OVERWRITTEN if explains(seen, from_later) else ""


def stale(seen: Seen) -> str:
    """Recognise objects that the same rank has sent in an earlier call."""

    def from_earlier(difference: Difference) -> bool:
        assert difference.got is not None
        collectives, wrong = difference.trial.collectives, []
        for i, (got, expected) in enumerate(zip(difference.got, difference.expected, strict=True)):
            if not same(got, expected):
                wrong.append(_was_sent(got, [*difference.before, *collectives[:i]]))
        return bool(wrong) and all(wrong)

    return STALE if explains(seen, from_earlier) else ""


def _was_sent(got: Any, before: Sequence[Collective]) -> bool:
    """Return whether a result is that of an earlier call; but for objects that are everywhere."""
    if len(describe(got)) < _TRIVIAL:
        return False
    if type(got) is not Gathered:
        return any(same(got, obj) for collective in before for obj in collective.sent)
    return any(
        len(got) == len(collective.sent) and all(map(same, got, collective.sent))
        for collective in before
    )


def not_awaited(seen: Seen) -> str:
    """Recognise None in the place of the objects of ranks that came late."""

    def is_late(difference: Difference) -> bool:
        found = pairs(difference)
        return bool(found) and all(
            pair.got is None and pair.rank in difference.trial.collectives[pair.call].late
            for pair in found or ()
        )

    return NOT_AWAITED if explains(seen, is_late) else ""


CALLS = (input_changed, mispaired, overwritten, stale, not_awaited)
"""The causes of results of another call."""
