"""Causes of bytes that arrive with another length, or in pieces at other places."""

from __future__ import annotations

from typing import Any

from disteval.conformance.causes.lists import Pair, pairs
from disteval.conformance.fingerprint import Gathered
from disteval.conformance.seen import (
    Difference,
    Long,
    Seen,
    explains,
    is_as_long,
    pieces_of,
    same,
    wrong_pieces,
)

STRIPPED = (
    "padding is taken off by stripping zero bytes, which may belong to the object; send the length "
    "of each payload, and cut there"
)
PADDED = (
    "payloads are padded to the longest and the padding is not taken off; send the length of each "
    "payload, and cut there"
)
SIXTEEN_BITS = "the length of a payload is counted in 16 bits; send it in 64 bits"
SIZE_OF_RANK_0 = (
    "every payload is received in a buffer as long as that of rank 0; gather the lengths first, "
    "and receive each payload in its own"
)
OWN_SIZE = (
    "every payload is received in a buffer as long as the rank's own; gather the lengths first, "
    "and receive each payload in its own"
)
CUT_AT = "payloads are cut at {} bytes, which is the size of some buffer; send the length first"
SHORT = (
    "less than the whole payload is received; repeat the library's receive, which returns what is "
    "there, until all bytes are"
)
MISPLACED = (
    "pieces of large objects are put at a wrong place, or into the object of another rank; send "
    "with each piece whose it is and where it begins"
)


def wrong_length(seen: Seen) -> str:
    """Recognise bytes that were cut, stripped or padded."""
    cut = [p for difference in seen.every for p in pairs(difference) or () if _is_cut(p)]
    cut_at = {_length(pair.got) for pair in cut}
    several = len({len(pair.expected) for pair in cut}) > 1
    tests = {
        STRIPPED: lambda d, p: same(p.got, p.expected.rstrip(b"\0")),
        PADDED: lambda d, p: _length(p.got) > len(p.expected) and _is_padded(p),
        SIXTEEN_BITS: lambda d, p: _is_cut(p, len(p.expected) % (1 << 16)),
        SIZE_OF_RANK_0: lambda d, p: several and _is_cut(p, _length_of(d, p, 0)),
        OWN_SIZE: lambda d, p: several and _is_cut(p, _length_of(d, p, d.rank)),
        CUT_AT: lambda d, p: several and _is_cut(p) and len(cut_at) == 1 and 0 not in cut_at,
        SHORT: lambda d, p: _is_cut(p) and _length(p.got) > 0,
    }
    for cause, test in tests.items():

        def explained(difference: Difference, test: Any = test) -> bool:
            found = pairs(difference)
            return bool(found) and all(
                type(p.expected) in (bytes, bytearray) and test(difference, p) for p in found or ()
            )

        if explains(seen, explained):
            return cause.format(*cut_at) if cause == CUT_AT else cause
    return ""


def misplaced(seen: Seen) -> str:
    """Recognise long bytes most of whose wrong pieces were sent in the same call."""

    def is_misplaced(difference: Difference) -> bool:
        found = pairs(difference)
        return bool(found) and all(
            is_as_long(p.got, p.expected)
            and _sent_elsewhere(p, difference.trial.collectives[p.call].sent)
            for p in found or ()
        )

    return MISPLACED if explains(seen, is_misplaced) else ""


def _sent_elsewhere(pair: Pair, sent: list[Any]) -> bool:
    known = {piece for obj in sent for piece in pieces_of(obj)}
    wrong = [pair.got.pieces[number] for number in wrong_pieces(pair.got, pair.expected)]
    return 2 * sum(piece in known for piece in wrong) > len(wrong)


def _length(got: Any) -> int:
    return got.length if type(got) is Long else len(got)


def _is_cut(pair: Pair, at: int | None = None) -> bool:
    """Return whether bytes have come without their end, and with that length if one is given."""
    if type(pair.expected) not in (bytes, bytearray):
        return False
    length = _length(pair.got)
    return (
        at in (None, length)
        and length < len(pair.expected)
        and same(pair.got, pair.expected[:length])
    )


def _is_padded(pair: Pair) -> bool:
    return same(pair.got, pair.expected.ljust(_length(pair.got), b"\0"))


def _length_of(difference: Difference, pair: Pair, rank: int) -> int:
    """Return the length of what a rank sent in an all-gather; -1 in a broadcast."""
    expected = difference.expected[pair.call]
    return len(expected[rank]) if type(expected) is Gathered else -1


LENGTHS = (wrong_length, misplaced)
"""The causes of payloads of another length, or in pieces at other places."""
