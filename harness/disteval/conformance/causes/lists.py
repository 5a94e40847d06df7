"""Causes of lists with the wrong entries, and of broadcasts of another rank's object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from disteval.conformance.fingerprint import Gathered
from disteval.conformance.seen import Difference, Seen, explains, key_of, same

NOT_A_LIST = (
    "all_gather_object returns what the library or an expression gave it, which is no list; "
    "return list(…) of it"
)
ORDER = (
    "the objects are in another order than that of the ranks, for example in the order in which "
    "they arrive; put the object of rank r at index r"
)
NESTED = (
    "each entry is a list around the object, so that lists of one were gathered and not joined; "
    "send the object itself, or extend the result by each list"
)
OWN = (
    "a rank has its own object in the place of another rank's, so that what it received is not "
    "used; fill the list from what was received"
)
OWN_MISSING = (
    "each rank leaves its own object out, as only those of the others are received; put a copy of "
    "its own at the index of its rank"
)
ONE_RANK = (
    "only one rank has the objects, as after a gather to a root; call the library's all-gather, or "
    "broadcast the list afterwards"
)
SRC_IGNORED = (
    "the broadcast always takes the object of rank 0; give src to the library's broadcast as its "
    "root"
)
OTHER_SRC = (
    "the broadcast takes the object of another rank than src; check in which numbers the library "
    "counts ranks, and give it that of src"
)
OWN_BROADCAST = (
    "ranks other than src return the object that they passed; return what was received from src"
)
NOTHING_BROADCAST = "ranks other than src return None; return what was received, on every rank"
OTHERS_SEND = (
    "ranks other than src serialise what they pass to a broadcast; serialise only on src itself"
)


class Pair(NamedTuple):
    """One result, or one entry of an all-gather, that differs.

    ``call`` is the number of the collective, and ``rank`` the rank whose object was expected; it
    is None where that is not known.
    """

    call: int
    rank: int | None
    got: Any
    expected: Any


def pairs(difference: Difference) -> list[Pair] | None:
    """Return the results and entries that differ; None where results can't be paired with them."""
    got, expected = difference.got, difference.expected
    if got is None or len(got) != len(expected):
        return None
    found = []
    collectives = difference.trial.collectives
    many = Gathered if collectives else list
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        if same(one, other):
            continue
        if type(other) is not many:
            src = collectives[index].src if index < len(collectives) else None
            found.append(Pair(index, src, one, other))
            continue
        if type(one) is not many or len(one) != len(other):
            return None
        entries = enumerate(zip(one, other, strict=True))
        found += [Pair(index, rank, *entry) for rank, entry in entries if not same(*entry)]
    return found


def _all_lists(difference: Difference, test: Callable[[list[Any], list[Any]], bool]) -> bool:
    """Return whether only results of all-gathers differ, and a test holds for each of these."""
    found = zip(difference.got or (), difference.expected, strict=True)
    wrong = [(one, other) for one, other in found if not same(one, other)]
    kind = Gathered if difference.trial.collectives else list
    gathered = all(type(each) is kind for pair in wrong for each in pair)
    return bool(wrong) and gathered and all(test(one, other) for one, other in wrong)


def not_a_list(seen: Seen) -> str:
    """Recognise the error that `disteval.conformance.on_ranks.sequence` raises, and tuples."""

    def is_tuple(got: Any, expected: Any) -> bool:
        return type(got) is tuple and type(expected) is list and same([*got], expected)

    def are_tuples(difference: Difference) -> bool:
        found = zip(difference.got or (), difference.expected, strict=True)
        wrong = [pair for pair in found if not same(*pair)]
        return bool(wrong) and all(is_tuple(*pair) for pair in wrong)

    if explains(seen, are_tuples):
        return NOT_A_LIST
    kinds = [str(e) for e in seen.errors.values() if "all_gather_object returned a " in str(e)]
    if not kinds:
        return ""
    nothing = all("NoneType" in kind for kind in kinds)
    return ONE_RANK if nothing and len(kinds) == seen.world_size - 1 > 0 else NOT_A_LIST


def wrong_order(seen: Seen) -> str:
    """Recognise lists that have all objects, at other places."""
    if any("came in the place of rank" in str(error) for error in seen.errors.values()):
        return ORDER

    def permuted(one: list[Any], other: list[Any]) -> bool:
        return sorted(map(key_of, one)) == sorted(map(key_of, other))

    return ORDER if explains(seen, lambda d: _all_lists(d, permuted)) else ""


def nested(seen: Seen) -> str:
    """Recognise lists whose entries are lists of one."""

    def is_nested(one: list[Any], other: list[Any]) -> bool:
        return same(Gathered(map(_only, one)), other)

    return NESTED if explains(seen, lambda d: _all_lists(d, is_nested)) else ""


def _only(entry: Any) -> Any:
    """Return the only entry of a list."""
    [only] = entry
    return only


def own_object(seen: Seen) -> str:
    """Recognise a rank's own object in another's place, or missing in its own."""
    if seen.world_size == 1:
        return ""

    def has_own(difference: Difference) -> bool:
        found = pairs(difference)
        return bool(found) and all(
            isinstance(difference.expected[pair.call], list)
            and same(pair.got, difference.expected[pair.call][difference.rank])
            for pair in found or ()
        )

    def lacks_own(difference: Difference) -> bool:
        def others(one: list[Any], other: list[Any]) -> bool:
            return same(one, Gathered(e for r, e in enumerate(other) if r != difference.rank))

        return _all_lists(difference, others)

    if explains(seen, has_own):
        return OWN
    everybody = {difference.rank for difference in seen.shown} == set(range(seen.world_size))
    return OWN_MISSING if everybody and explains(seen, lacks_own) else ""


def one_rank(seen: Seen) -> str:
    """Recognise lists of None, or empty ones, on all ranks but one."""
    ranks = {difference.rank for difference in seen.shown}

    def is_nothing(one: list[Any], _: list[Any]) -> bool:
        return all(entry is None for entry in one)

    alone = seen.world_size > 1 and len(ranks) == seen.world_size - 1
    return ONE_RANK if alone and explains(seen, lambda d: _all_lists(d, is_nothing)) else ""


def others_send(seen: Seen) -> str:
    """Recognise the error of the object that rule 3.3 lets other ranks pass.

    The facts are whether broadcasts of other objects work.
    """
    found = seen.facts and any("can't be pickled" in str(error) for error in seen.errors.values())
    return OTHERS_SEND if found else ""


def wrong_src(seen: Seen) -> str:
    """Recognise broadcasts of the object of another rank than src, or of none."""
    found = [(d.rank, *b) for d in seen.every for b in _broadcasts(d)]
    if not found or any(not _broadcasts(d) for d in seen.shown):
        return ""
    if all(src and same(got, sent[0]) for _, got, sent, src in found):
        return SRC_IGNORED
    if all(rank != src and same(got, sent[rank]) for rank, got, sent, src in found):
        return OWN_BROADCAST
    others = [r for _, got, sent, src in found if (r := _sender(got, sent, src)) is not None]
    if len(others) == len(found):
        return OTHER_SRC
    sources = {src for *_, src in found}
    nothing = all(rank != src and got is None for rank, got, _, src in found)
    everybody = len({difference.rank for difference in seen.shown}) == seen.world_size - 1
    return NOTHING_BROADCAST if nothing and everybody and len(sources) > 1 else ""


def _broadcasts(difference: Difference) -> list[tuple[Any, list[Any], int]]:
    """Return the result, the objects of the ranks and src of broadcasts that differ.

    It returns nothing if another result differs, or if all ranks passed the same.
    """
    found = []
    for pair in pairs(difference) or ():
        collectives = difference.trial.collectives
        if not collectives or collectives[pair.call].src is None:
            return []
        sent, src, _ = collectives[pair.call]
        found.append((pair.got, sent, src))
    return found


def _sender(got: Any, sent: list[Any], src: int) -> int | None:
    return next((r for r, obj in enumerate(sent) if r != src and same(got, obj)), None)


LISTS = (not_a_list, wrong_order, nested, own_object, one_rank, wrong_src)
"""The causes of a list or a broadcast with objects of the wrong ranks."""
