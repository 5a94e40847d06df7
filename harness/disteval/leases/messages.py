"""The messages between the lender of leases and the ranks that borrow them.

A rank speaks first: it is answered, and never has to read in the middle of its work. All messages
travel behind the handshake of `disteval.world.channel`.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple

import cloudpickle

from disteval.errors import HarnessError, UsageError, describe_error
from disteval.ledger import Part

MAX_MESSAGE_BYTES = 1 << 30
"""The largest message; 1 GiB."""
_ENVELOPE_BYTES = 1 << 20


class Hello(NamedTuple):
    """The first message of a rank, also when it has connected again.

    Attributes:
        rank: The rank; None asks for a number that no rank has.
        token: What tells this rank from another process with the same number.
        host: The name of its host.
        pid: Its process.
        settings: What must be equal on all ranks, by name.
        units: The number of units of the whole evaluation.
        record: What must be equal in the ledger, by name.
    """

    rank: int | None
    token: bytes
    host: str
    pid: int
    settings: Mapping[str, str]
    units: int
    record: Mapping[str, str]


class Welcome(NamedTuple):
    """The answer to a Hello.

    Attributes:
        rank: The number of the rank.
        timeout: The seconds of silence that are allowed.
        alone: Whether it holds its leases alone, and may leave one in the middle.
        is_kept: Whether what it commits is written to a disk.
        stored: What earlier runs have evaluated, without states and files.
    """

    rank: int
    timeout: float
    alone: bool
    is_kept: bool
    stored: tuple[Part, ...]


class Refused(NamedTuple):
    """The answer to a Hello of a rank that can't take part, and the reason."""

    what: str


class Ask(NamedTuple):
    """The rank wants a lease of so many units, or the result; it is answered when one is there."""

    units: int


class Ping(NamedTuple):
    """The rank waits for an answer, and wants to know whether the lender is there."""


class Wait(NamedTuple):
    """The answer to a Ping."""


class Lend(NamedTuple):
    """The rank holds this lease now; ``attempt`` counts the ranks that have held it."""

    number: int
    start: int
    stop: int
    attempt: int


class Progress(NamedTuple):
    """The rank has finished so many units of its lease."""

    number: int
    done: int


class Unwanted(NamedTuple):
    """Another rank was first with this lease."""

    number: int


class Result(NamedTuple):
    """The result, see `disteval.plain.packed`, or the pickled exception of computing it."""

    value: bytes | None
    error: bytes | None = None


class Commit(NamedTuple):
    """The rank has finished its lease, which amounts to a part, or is the result.

    It has waited so many seconds for its first batch where it reads ahead.
    """

    number: int
    made: Part | Result
    waited: float = 0.0


class Failed(NamedTuple):
    """The rank raised an exception at a unit, if it was at one, and takes no more leases."""

    unit: int | None
    what: str


class Collect(NamedTuple):
    """The rank, which holds the result, wants the parts from this one on."""

    start: int


class Collected(NamedTuple):
    """The answer to Collect: some of the parts, and whether they are the last ones."""

    parts: Sequence[Part]
    is_last: bool


class LeaseReport(NamedTuple):
    """What happened to the leases of an evaluation.

    Attributes:
        ranks: The number of ranks that took part.
        committed: The number of leases that count.
        resumed: The number of samples in leases that an earlier run had committed.
        lost: The ranks that were lost, and how each was; one that came back is among them.
        failed: The ranks that raised an exception, and which.
        repeated: The number of units that were evaluated once more than needed.
        copies: The number of leases that were lent to a second rank at the same time.
        difference: The largest difference between what ranks that joined computed for the same
            samples; None if that is not known.
        since: When the first of the earlier runs began; nothing if they have left nothing.
    """

    ranks: int = 0
    committed: int = 0
    resumed: int = 0
    lost: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    repeated: int = 0
    copies: int = 0
    difference: float | None = None
    since: str = ""


class Finished(NamedTuple):
    """The end of the evaluation: its result or its error, as in `Result`."""

    value: bytes | None
    error: bytes | None
    report: LeaseReport


_FORMS: dict[type, tuple[type | UnionType, ...]] = {
    Hello: (int | None, bytes, str, int, dict, int, dict),
    Ask: (int,),
    Ping: (),
    Progress: (int, int),
    Commit: (int, Part | Result, float),
    Failed: (int | None, str),
    Collect: (int,),
}
"""The messages that a lender takes, and the kinds of their values."""


def decode(data: bytes) -> Any:
    """Return the message of a rank, all of whose values are of the right kinds.

    Raises:
        ValueError: The bytes are something else.
    """
    try:
        message = pickle.loads(data)
        kinds = _FORMS[type(message)]
        told = all(map(isinstance, message, kinds)) and len(message) == len(kinds)
        if isinstance(message, Hello):
            pairs = [*message.settings.items(), *message.record.items()]
            told &= all(isinstance(text, str) for pair in pairs for text in pair)
            told &= message.units >= 0 and (message.rank is None or message.rank >= 0)
        elif isinstance(message, Commit) and isinstance(message.made, Part):
            counted, mixed, contents = message.made.certificate
            told &= type(counted) is int and type(mixed) is int
            told &= contents is None or type(contents) is int
            told &= isinstance(message.made.states, bytes) and isinstance(message.made.ids, tuple)
            told &= 0 <= message.waited < math.inf
        elif isinstance(message, Commit) and isinstance(message.made, Result):
            told &= (message.made.value is None) != (message.made.error is None)
        elif isinstance(message, Collect):
            told &= message.start >= 0
    except Exception as error:
        raise ValueError(f"bytes that are no message ({describe_error(error)})") from error
    if not told:
        raise ValueError(f"a {type(message).__name__} with values of other kinds")
    return message


def encode(message: Any) -> bytes:
    """Return a message as `multiprocessing.connection.Connection` sends it, length first."""
    data = pickle.dumps(message, protocol=5)
    return struct.pack("!i", len(data)) + data


def check_size(data: bytes, what: str, remedy: str) -> None:
    """Raise UsageError, which says what it is and what to do, if bytes do not fit into a message.

    Raises:
        UsageError: They don't.
    """
    if len(data) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise UsageError(
            f"{what} are {len(data)} bytes, and a message of leases holds up to "
            f"{MAX_MESSAGE_BYTES}; {remedy}"
        )


def pickled_error(error: Exception) -> bytes:
    """Pickle an exception, or one with its description if its class can't be rebuilt elsewhere."""
    try:
        data = bytes(cloudpickle.dumps(error))
        pickle.loads(data)
    except Exception:  # of whatever the class does
        return pickle.dumps(HarnessError(describe_error(error)))
    return data
