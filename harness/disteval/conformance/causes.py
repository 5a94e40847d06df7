"""Naming the likely cause of a failure, where its results do not tell it by themselves.

A detector is a function of `Seen` that returns a sentence, what is wrong and what to do, or nothing
where it was not seen; one that a single rule needs stands beside that. What people get wrong
besides stands in the rule, see `Rule.usually`.
"""

from __future__ import annotations

import datetime
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from disteval.conformance.fingerprint import BASES, Gathered, describe, digest
from disteval.conformance.wrong import Difference, Long, same
from disteval.errors import HarnessError, WorldError
from disteval.world.channel.messages import Frame
from disteval.world.postmortem import first_line

OUT_OF_ORDER = (
    "an all-gather returned the right objects in another order than that of the ranks; entry r has "
    "to be that of rank r"
)
ADDRESS_IN_USE = (
    "the backend listens on a fixed port, which another process has; let rank 0 listen on "
    "rendezvous.port, or on port 0 and publish the port that it got"
)
SENDS = (
    "each rank sends before any receives, and the buffers of the connections are full; send in a "
    "thread of its own, or let every second rank receive first"
)
RAISES = "the backend raises {} in {} ({}, line {}); its traceback says how it came there"
PICKLE = (
    "arrays arrive in the byte order of the machine, because they are converted, or pickled with a "
    "protocol below 5 (with which, below 3, some classes become older ones, too); pass protocol=5 "
    "to pickle.dumps, and convert nothing"
)
SERIALISER = (
    "objects travel in a format that knows fewer types than Python, as JSON and MessagePack do; "
    "pickle them, by protocol 5"
)
STRIPPED = (
    "padding is taken off by stripping zero bytes, which may belong to the object; send the length "
    "of each payload, and cut there"
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
STALE = (
    "objects of an earlier call are returned, from a buffer or a cache that was not renewed; "
    "receive into new memory in each call"
)
OVERWRITTEN = (
    "a later call writes into the result of an earlier one, because both are the same list; return "
    "a new list from each call"
)

_SENDING = re.compile(
    r"(?:^|\.)_?(send|sendall|send_bytes|sendmsg|write|put)(?:$|\()", re.IGNORECASE
)
_MOST_DEEP = 20
_TRIVIAL = 6  # descriptions this short are of objects, such as 0 and None, that occur by chance
_SIMPLER = ((bytearray, bytes), (bool, int))
_CONTAINERS = (tuple, set, frozenset, range)


@dataclass(frozen=True)
class Seen:
    """What was seen of a failure.

    Attributes:
        cls: The backend's class.
        world_size: The number of ranks.
        error: The error of the world, if a rank raised, hung or was lost; None if results differ.
        shown: The wrong results of the example that is shown.
        every: The wrong results of all examples that failed, at every try.
    """

    cls: type
    world_size: int
    error: WorldError | None = None
    shown: Sequence[Difference] = ()
    every: Sequence[Difference] = ()

    @property
    def errors(self) -> Mapping[int, Exception]:
        """The exceptions that ranks raised, by rank."""
        return self.error.errors if self.error else {}


Detector = Callable[[Seen], str]
"""Returns the sentence of a cause where it was seen, or nothing."""


def likely_cause(seen: Seen, of_rule: Detector | None = None) -> str:
    """Return the likely cause of a failure and what to do about it, or nothing.

    Args:
        seen: What was seen of it.
        of_rule: The detector that belongs to the rule.
    """
    for detect in (address_in_use, of_rule, conversion, cut, _of_calls, sends):
        with suppress(Exception):  # what a broken backend returned may not even be comparable
            if detect and (found := detect(seen)):
                return found
    return ""


def _of_calls(seen: Seen) -> str:
    """Recognise results that belong to a later or an earlier call."""
    if explains(seen, overwritten):
        return OVERWRITTEN
    return STALE if explains(seen, stale) else ""


def failure_of(seen: Seen, message: str) -> str:
    """Return in a few words how a rule failed: the same at any world size, for one mistake.

    Args:
        seen: What was seen of it.
        message: The failure in words, where nothing else is known of it.
    """
    if kinds := _raised(seen):
        return f"raised {', '.join(sorted(kinds))}"
    if seen.error is not None:
        return "ranks ended" if seen.error.lost else "ranks waited"
    if not seen.shown:  # a check that has compared by itself has words of its own
        return " ".join(dict.fromkeys(re.findall(r"[^\W\d]+", first_line(message))))
    with suppress(Exception):  # what a broken backend returned may not even be comparable
        if all(difference.got is not None for difference in seen.shown):
            parts = [part for each in seen.shown for part in leaves(each.got, each.expected)]
            return ", ".join(sorted({_of_parts(*part) for part in parts})) or "other sharing"
    return "other results"


def _of_parts(got: Any, expected: Any) -> str:
    came, sent = map(_kind, (got, expected))
    if came != sent:
        return f"{came} for {sent}"
    lengths = {len(each) for each in (got, expected) if isinstance(each, list | tuple | dict)}
    return f"another {'length' if len(lengths) == 2 else 'value'} of {sent}"


def _kind(obj: Any) -> str:
    if type(obj) is Long:
        return str(obj.kind)
    return "list" if type(obj) is Gathered else type(obj).__name__


def _raised(seen: Seen) -> set[str]:
    """Return the names of the classes of the exceptions that ranks raised."""
    said: list[str] = [status.raised for status in (seen.error.ranks if seen.error else ())]
    return {text.partition(":")[0].rpartition(".")[2].strip() for text in said if text}


def explains(seen: Seen, test: Callable[[Difference], bool]) -> bool:
    """Return whether a test holds for all that is shown, and for most of all that was wrong."""

    def holds(difference: Difference) -> bool:
        try:
            return difference.got is not None and test(difference)
        except Exception:  # what a broken backend returned may not even be comparable
            return False

    if not seen.shown or not all(map(holds, seen.shown)):
        return False
    every = [difference for difference in seen.every if difference.got is not None]
    return 5 * sum(map(holds, every)) >= 4 * len(every)


class Pair(NamedTuple):
    """One result of a collective, or one entry of an all-gather, that differs."""

    call: int
    got: Any
    expected: Any


def pairs(difference: Difference) -> list[Pair]:
    """Return what differs in results of collectives; nothing where a list has another length."""
    got, expected = difference.got, difference.expected
    if got is None or len(got) != len(expected) or not difference.trial.collectives:
        return []
    found = []
    for call, (one, other) in enumerate(zip(got, expected, strict=True)):
        if same(one, other):
            continue
        if type(other) is not Gathered:
            found.append(Pair(call, one, other))
            continue
        if type(one) is not Gathered or len(one) != len(other):
            return []
        entries = zip(one, other, strict=True)
        found += [Pair(call, *entry) for entry in entries if not same(*entry)]
    return found


def explains_pairs(seen: Seen, test: Callable[[Difference, Pair], bool]) -> bool:
    """Return whether a test holds for all pairs of what is shown, and of most that was wrong."""

    def holds(difference: Difference) -> bool:
        found = pairs(difference)
        return bool(found) and all(test(difference, pair) for pair in found)

    return explains(seen, holds)


def address_in_use(seen: Seen) -> str:
    """Recognise the error of a port that another process has."""
    said = [f"{type(error).__name__}: {error}" for error in seen.errors.values()]
    for status in seen.error.ranks if seen.error else ():
        trace = status.reply.trace if status.reply else ""
        # An exception, also one behind another, begins a line of a traceback.
        said += [line for line in trace.splitlines() if not line[:1].isspace()]
    used = re.compile("address already in use|EADDRINUSE", re.IGNORECASE)
    return ADDRESS_IN_USE if any(map(used.search, said)) else ""


def sends(seen: Seen) -> str:
    """Recognise that every rank waits in a call that sends, or gave up one after its timeout."""
    ranks = seen.error.ranks if seen.error else ()
    late = all(isinstance(error, TimeoutError) for error in seen.errors.values())
    everybody = len(ranks) == seen.world_size > 1 and late
    return SENDS if everybody and all(_sends(each.frames, seen.cls) for each in ranks) else ""


def _sends(frames: Sequence[Frame], cls: type) -> bool:
    """Return whether the innermost calls of a rank send something, for the backend."""
    if not _place(frames, cls):
        return False
    inner = frames[0]  # it may call a function of C, which has no frame
    said = [frame.function for frame in frames[:3]]
    said.append(linecache.getline(inner.file, inner.line).strip())
    return any(map(_SENDING.search, said))


def plain_cause(seen: Seen) -> str:
    """Say that objects are out of order; or where all ranks raised alike, at one line."""
    if explains(seen, out_of_order):
        return OUT_OF_ORDER
    raised = [status for status in (seen.error.ranks if seen.error else ()) if status.raised]
    places, kinds = {_place(status.frames, seen.cls) for status in raised}, _raised(seen)
    # An error of disteval says itself what to do, and may come of what another rank does.
    own = any(isinstance(error, HarnessError) for error in seen.errors.values())
    if len(places) == len(kinds) == 1 and all(places) and not own:
        return RAISES.format(*kinds, *places.pop())
    return ""


def _place(frames: Sequence[Frame], cls: type) -> tuple[str, ...]:
    """Return the function, file and line of the innermost call in the files of a backend."""
    files = set()
    for each in cls.__mro__:
        with suppress(TypeError, OSError):  # a class of C, or of a shell
            if not each.__module__.startswith("disteval."):
                files.add(inspect.getsourcefile(each))
    for frame in frames:
        if frame.file in files:
            return frame.function, Path(frame.file).name, str(frame.line)
    return ()


def conversion(seen: Seen) -> str:
    """Recognise a pickle protocol, or a format of fewer types, by all parts that have changed."""
    for cause in (PICKLE, SERIALISER):

        def is_of_it(_: Difference, pair: Pair, cause: str = cause) -> bool:
            return {_of_leaf(*each) for each in leaves(pair.got, pair.expected)} == {cause}

        if explains_pairs(seen, is_of_it):
            return cause
    return ""


def leaves(got: Any, expected: Any, deep: int = 0) -> Iterator[tuple[Any, Any]]:
    """Return the innermost parts of two objects that differ; none if only their sharing does."""
    if digest(got) == digest(expected):
        return
    alike = type(got) is type(expected) and deep < _MOST_DEEP
    if alike and type(got) in (list, tuple, Gathered) and len(got) == len(expected):
        parts = list(zip(got, expected, strict=True))
    elif alike and type(got) is dict and list(got) == list(expected):
        parts = list(zip(got.values(), expected.values(), strict=True))
    elif alike and hasattr(got, "__dict__") and not isinstance(got, (BaseException, *BASES)):
        parts = [(vars(got), vars(expected))]
    else:
        yield got, expected
        return
    for one, other in parts:
        yield from leaves(one, other, deep + 1)


def _of_leaf(got: Any, expected: Any) -> str:
    """Return the cause that would explain one difference, or nothing."""
    if isinstance(expected, np.ndarray):
        return _of_array(got, expected)
    if isinstance(expected, ModuleNotFoundError):
        return PICKLE if type(got) is ImportError else ""
    if isinstance(expected, datetime.time):
        return PICKLE if type(got) is datetime.time and got.fold < expected.fold else ""
    zoned = isinstance(expected, datetime.datetime) and type(got) is type(expected)
    fields = getattr(expected, "__dict__", None)
    known = (
        (zoned and got == expected.replace(tzinfo=None))
        or ((type(expected), type(got)) in _SIMPLER and got == expected)
        or (type(expected) in _CONTAINERS and type(got) is list and len(got) == len(expected))
        or (bool(fields) and type(got) is dict and got == fields)
    )
    return SERIALISER if known else ""


def _of_array(got: Any, expected: Any) -> str:
    if not isinstance(got, np.ndarray):
        plain = type(got) is list and not expected.dtype.names and got == expected.tolist()
        return SERIALISER if plain else ""
    laid_out = got.shape == expected.shape and got.strides == expected.strides
    native = got.dtype == expected.dtype.newbyteorder("=") != expected.dtype
    same_values = bool(expected.dtype.names) or np.array_equal(got, expected)
    return PICKLE if native and laid_out and same_values else ""


def cut(seen: Seen) -> str:
    """Recognise bytes that came without their end, and what the others are cut at."""
    shorter = [pair for each in seen.every for pair in pairs(each) if _is_cut(pair)]
    cut_at = {_length(pair.got) for pair in shorter}
    several = len({len(pair.expected) for pair in shorter}) > 1
    # Of one payload alone it may be what has come so far, but for such a size.
    at_a_power = all(at & (at + 1) == 0 or at & (at - 1) == 0 for at in cut_at)
    sizes_of_buffers = len(cut_at) == 1 and 0 not in cut_at and (several or at_a_power)
    tests: dict[str, Callable[[Difference, Pair], bool]] = {
        STRIPPED: lambda d, p: same(p.got, p.expected.rstrip(b"\0")),
        SIXTEEN_BITS: lambda d, p: _is_cut(p, len(p.expected) % (1 << 16)),
        SIZE_OF_RANK_0: lambda d, p: several and _is_cut(p, _length_of(d, p, 0)),
        OWN_SIZE: lambda d, p: several and _is_cut(p, _length_of(d, p, d.rank)),
        CUT_AT: lambda d, p: sizes_of_buffers and _is_cut(p),
        SHORT: lambda d, p: _is_cut(p) and _length(p.got) > 0,
    }
    for cause, test in tests.items():
        if explains_pairs(seen, test):
            return cause.format(*cut_at) if cause == CUT_AT else cause
    return ""


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


def _length_of(difference: Difference, pair: Pair, rank: int) -> int:
    """Return the length of what a rank sent in an all-gather; -1 in a broadcast."""
    expected = difference.expected[pair.call]
    return len(expected[rank]) if type(expected) is Gathered else -1


def out_of_order(difference: Difference) -> bool:
    """Return whether the right objects are at wrong places in the lists of all-gathers."""

    def moved(got: Any, expected: Any) -> bool:
        both = isinstance(got, list) and isinstance(expected, list)
        return both and sorted(map(_digest, got)) == sorted(map(_digest, expected))

    got, expected = difference.got or [], difference.expected
    found = [pair for pair in zip(got, expected, strict=True) if not same(*pair)]
    # A rule with a program of its own may have all entries in one list.
    in_one = not difference.trial.collectives and moved(got, expected)
    return bool(found) and (in_one or all(moved(*pair) for pair in found))


def _digest(got: Any) -> str:
    return str(got.digest) if type(got) is Long else digest(got)


def overwritten(difference: Difference) -> bool:
    """Return whether earlier results have become equal to later ones."""
    got, expected = difference.got or (), difference.expected
    wrong = [(i, one) for i, one in enumerate(got) if not same(one, expected[i])]
    return bool(wrong) and all(
        type(one) is Gathered and any(same(one, later) for later in expected[i + 1 :])
        for i, one in wrong
    )


def stale(difference: Difference) -> bool:
    """Return whether all that is wrong was sent in an earlier call, and by no rank in this one."""
    calls = difference.trial.collectives
    found = zip(difference.got or (), difference.expected, strict=True)
    wrong = [(i, got) for i, (got, expected) in enumerate(found) if not same(got, expected)]
    return bool(wrong) and all(
        _was_sent(got, [*difference.before, *calls[:i]]) and not _was_sent(got, [calls[i]])
        for i, got in wrong
    )


def _was_sent(got: Any, before: Sequence[Any]) -> bool:
    """Return whether a result is that of an earlier call; but for objects that are everywhere."""
    entries = got if type(got) is Gathered else [got]
    if all(len(describe(entry)) < _TRIVIAL for entry in entries):
        return False
    if type(got) is not Gathered:
        return any(same(got, obj) for collective in before for obj in collective.sent)
    return any(
        len(got) == len(collective.sent) and all(map(same, got, collective.sent))
        for collective in before
    )
