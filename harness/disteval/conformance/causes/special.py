"""Causes that one rule alone knows: of identities, leaks, errors, lost ranks and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disteval.conformance.seen import Difference, Long, Seen, explains, key_of, same

ALONE = (
    "no rank has joined the others, since each says that it is rank 0 of 1; join the library's "
    "group in init_process, with the rank and the world size that it is given"
)
SWAPPED = "rank and world size are swapped; check the order in which they are passed and returned"
FROM_ONE = "ranks are counted from 1; return the library's number less 1"
NOT_AN_INTEGER = (
    "rank or world_size is not an integer; make it a property that returns int(…) of what the "
    "library says"
)
SAME_RANK = (
    "all processes have the same rank, as if it came from a variable of the environment or of the "
    "class; use the rank that init_process is given"
)
NOT_IN_A_GROUP = (
    "is_initialized is false although the group was joined; return whether init_process has "
    "succeeded, or ask the library"
)
TOO_SOON = (
    "is_initialized does not ask whether this process has joined; return false until init_process "
    "has succeeded"
)
GROUP_IN_INIT = (
    "the constructor needs the group, which is joined later; use the group when a method is called"
)
FILES_LEAK = "collectives open files or sockets and leave them open; close them, or keep one open"
THREADS_LEAK = "collectives start threads that do not end with them; keep one thread, or join each"
RESULTS_KEPT = (
    "each collective keeps bytes, such as results or buffers; drop what was sent and received when "
    "the call returns"
)
STATE_OF_OBJECTS = (
    "each backend object has buffers or numbers of its own, while all of them share one group; "
    "keep that state once for the group"
)
ONE_IS_TOLD = (
    "the object is serialised or checked before ranks communicate, so that only its rank has the "
    "error; catch it, and send the others a message that says so"
)
SWALLOWED = (
    "the error is caught and a value returned instead; raise it on every rank, as RankError or any "
    "other exception"
)
STATE_AFTER_ERROR = (
    "something of the failed call is left behind, such as a flag or bytes that nobody has read; "
    "bring every call to its end on all ranks before you raise"
)
NO_TIMEOUT = (
    "a wait for another rank has no limit, or a longer one than Rendezvous.timeout; give that "
    "timeout to the library's group and to each receive"
)
GOES_ON = (
    "the library's error, or a closed connection, is taken for an answer; raise it, and return "
    "nothing that did not come from every rank"
)
ABORTS = (
    "the library ends the whole process when a rank is lost; set its error handler to return "
    "errors, or declare detects_lost_ranks a No"
)
TWO_DIMENSIONS = "the tensor has more than one dimension; flatten it"
PADS_IN_FRONT = "the padding is in front of the bytes; put it behind them"
PADS_TOO_FAR = "the tensor is padded to another size than the one asked for; use size as it is"
SRC_OF_TENSORS = (
    "the broadcast always takes the tensor of rank 0; give src to the library's broadcast as its "
    "root"
)
ORDER_OF_TENSORS = (
    "the tensors are in another order than that of the ranks; return that of rank r at index r"
)


def identity(seen: Seen) -> str:
    """Recognise what ranks say in rule 1.1: whether in a group, the rank and the world size."""
    found, world = seen.facts or [], seen.world_size
    if any(isinstance(value, str) for identity in found for value in identity):
        return NOT_AN_INTEGER
    ranks, sizes = [rank for _, rank, _ in found], [size for *_, size in found]
    right = list(range(world))
    if (ranks, sizes) == (right, [world] * world):
        return NOT_IN_A_GROUP if found else ""
    if (set(ranks), set(sizes)) == ({0}, {1}):
        return ALONE
    if (sizes, ranks) == (right, [world] * world):
        return SWAPPED
    if ranks == [rank + 1 for rank in right]:
        return FROM_ONE
    return SAME_RANK if len(set(ranks)) == 1 else ""


def before_joining(seen: Seen) -> str:
    """Recognise the identities of rule 1.3, or the errors that came instead."""
    found = seen.facts or []
    if any(isinstance(before, str) for before in found):
        return GROUP_IN_INIT
    return TOO_SOON if any(before[0] and before[1:] == (0, 1) for before in found) else ""


def leaks(seen: Seen) -> str:
    """Recognise which grew too much in rule 5.3: descriptors, threads or bytes."""
    if seen.facts is None:
        return ""
    files, threads, _ = seen.facts
    if files:
        return FILES_LEAK
    return THREADS_LEAK if threads else RESULTS_KEPT


def objects(seen: Seen) -> str:
    """Recognise results of rule 5.4 that belong to another object or call, of whichever rank.

    The facts of each difference are whether a single object worked before.
    """
    if any("collectives are mispaired" in str(error) for error in seen.errors.values()):
        return STATE_OF_OBJECTS

    def mixed(difference: Difference) -> bool:
        if not difference.wrong.facts:
            return False
        sent = [entry for result in difference.expected for entry in _entries(result)]
        return all(entry in sent for result in difference.got or () for entry in _entries(result))

    return STATE_OF_OBJECTS if explains(seen, mixed) else ""


def _entries(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


def errors(seen: Seen) -> str:
    """Recognise who was told in rules 6.1 and 6.2, from whether each rank raised.

    The facts of each difference are whether collectives worked before the error.
    """
    found = seen.error.post_mortem if seen.error else None
    if found and found.waiting and any(status.returned for status in found.ranks):
        return ONE_IS_TOLD
    told = {d.rank: d.got[0] for d in seen.shown if d.got and len(d.got) == 2}
    if not told or len(told) < len(seen.shown):
        return ""
    if not seen.every[0].wrong.facts:
        return ""
    if all(told.values()):
        return STATE_AFTER_ERROR
    guilty = seen.shown[0].arg[0]
    if len(told) == seen.world_size and not any(told.values()):
        return SWALLOWED
    untold = {rank for rank in told if not told[rank]}
    return ONE_IS_TOLD if untold == set(range(seen.world_size)) - {guilty} else ""


def over_the_cap(seen: Seen) -> str:
    """Recognise what ranks found in rule 6.3; facts say, too, whether it worked before."""
    if seen.facts is None:
        return ""
    guilty, outcomes, before = seen.facts
    if len(set(outcomes)) == 1:
        return STATE_AFTER_ERROR if outcomes[0] == "error" and all(before) else ""
    told = [rank for rank, outcome in enumerate(outcomes) if outcome == "error"]
    return ONE_IS_TOLD if told == [guilty] else ""


def lost_ranks(seen: Seen) -> str:
    """Recognise what the survivors of rule 7 did: waited, returned or ended."""
    found = set(seen.facts or ())
    causes = {"waits": NO_TIMEOUT, "returned": GOES_ON, "ended": ABORTS}
    return causes.get(found.pop(), "") if len(found) == 1 else ""


def tensors(seen: Seen) -> str:
    """Recognise the shapes and bytes of rules 9.1 and 9.2."""
    # Where the padding is as long as the bytes, any other bytes look as if they were behind it.
    short = any(each.expected[0][0] < 2 * len(each.expected[1]) for each in seen.every)
    tests: dict[str, Callable[[Any, int, Any, Any], bool]] = {
        TWO_DIMENSIONS: lambda shape, size, data, expected: len(shape) > 1,
        PADS_TOO_FAR: lambda shape, size, data, expected: shape[0] > size,
        PADS_IN_FRONT: lambda shape, size, data, expected: (
            type(data) is Long
            or (short and data[size - len(expected) :] == expected[: 2 * len(expected) - size])
            or size >= 2 * len(expected)
        ),
    }
    for cause, test in tests.items():

        def explained(difference: Difference, test: Any = test) -> bool:
            (shape, data), ((size,), expected) = difference.got or ((), b""), difference.expected
            return bool(test(shape, size, data, expected))

        if explains(seen, explained):
            return cause
    return ""


def tensor_collectives(seen: Seen) -> str:
    """Recognise the tensors of rule 9.3: first those of an all-gather, then one from each src."""
    world = seen.world_size

    def reversed_order(difference: Difference) -> bool:
        got, expected = (difference.got or [])[:world], difference.expected[:world]
        ours, theirs = [*map(key_of, got)], [*map(key_of, expected)]
        return ours != theirs and sorted(ours) == sorted(theirs)

    def root_is_0(difference: Difference) -> bool:
        got, expected = difference.got or [], difference.expected
        gathered = all(map(same, got[:world], expected[:world]))
        return gathered and all(same(each, expected[0]) for each in got[world:])

    if explains(seen, reversed_order):
        return ORDER_OF_TENSORS
    return SRC_OF_TENSORS if explains(seen, root_is_0) else ""
