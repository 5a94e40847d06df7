"""All messages between a leader, or a lender of leases, and its ranks, and their size.

In leases a rank speaks first: it is answered, and never has to read in the middle of its work.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cloudpickle

from disteval import by_value
from disteval.errors import HarnessError, UsageError, WorldError, describe_error

if TYPE_CHECKING:
    from disteval.ledger import Part

MAX_MESSAGE_BYTES = 1 << 30
"""The largest message; 1 GiB."""

_ENVELOPE_BYTES = 1 << 20  # left for the function or the traceback beside the value
_SMALL_BYTES = 1 << 16


class Hello(NamedTuple):
    """The first message of a rank: its number, and the process and thread that it runs in.

    ``host`` is the name of its host, ``machine`` tells machines and namespaces apart where two
    have one name, and ``directory`` holds the rank's files there. The leader adds the address,
    and gives a rank without a number one that no other rank has.
    """

    rank: int | None
    pid: int
    thread: int
    host: str = ""
    machine: str = ""
    directory: str = ""
    address: str = ""


class Order(NamedTuple):
    """Call a function with the rank and its arguments; both are pickled with cloudpickle.

    ``trace`` is the pickled `Place` of the trace in which it is recorded, and the order in a few
    words; None records none.
    """

    function: bytes
    arguments: bytes
    trace: tuple[bytes, str] | None = None


class Progress(NamedTuple):
    """The rank has done ``done`` of ``total`` samples of the present order; None is not known."""

    done: int
    total: int | None


class Note(NamedTuple):
    """A value that the rank sends before its order is done; pickled with cloudpickle."""

    value: bytes


class KeyValue(NamedTuple):
    """The value of a key; None asks for the value that another rank has published or will."""

    key: str
    value: str | bytes | None = None


class Frame(NamedTuple):
    """A call in which a thread is, or was when it raised; line 0 is an unknown one."""

    file: str
    line: int
    function: str


class Reply(NamedTuple):
    """The result of an order: a value, or an exception with its traceback and message as text.

    ``frames`` are the calls in which it was raised, the innermost first.
    """

    value: bytes | None
    error: bytes | None = None
    trace: str = ""
    message: str = ""
    frames: Sequence[Frame] = ()

    @property
    def exception(self) -> Exception | None:
        """The exception, as far as it could be pickled; None without one."""
        if self.error is None:
            return None
        try:
            return cast(Exception, pickle.loads(self.error))
        except Exception as error:  # its class can't be unpickled; its traceback says what it was
            return HarnessError(f"an exception that can't be rebuilt here ({error})")


class Examine(NamedTuple):
    """Ask a rank what ranks of its host are doing, as their `RankStatus` tells.

    It is answered while an order is carried out, also by a rank that hangs.
    """

    ranks: Sequence[Any]


class Examined(NamedTuple):
    """The answer to `Examine`: the same statuses, with what can be seen of the ranks.

    ``calls`` are the answering rank's own calls of torch.distributed; None if they are not known.
    """

    ranks: Sequence[Any]
    calls: Sequence[Any] | None = None


class Dismissal(NamedTuple):
    """No more orders follow: the rank leaves its group and ends with this exit status."""

    exit_code: int = 0


class Alive(NamedTuple):
    """The leader's process runs, whatever its threads do; ranks of other hosts can't see that."""


class Join(NamedTuple):
    """The rank wants to borrow leases.

    Attributes:
        settings: What must be equal on all ranks, by name.
        units: The number of units of the whole evaluation.
        record: What must be equal in the ledger, by name.
    """

    settings: Mapping[str, str]
    units: int
    record: Mapping[str, str]


class Joined(NamedTuple):
    """The answer to a Join.

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
    """The answer to a Join of a rank that can't take part, and the reason."""

    what: str


class Ask(NamedTuple):
    """The rank wants a lease of so many units, or the result; it is answered when one is there."""

    units: int


class Ping(NamedTuple):
    """The rank waits for an answer, and wants to know whether the lender is there."""


class Pong(NamedTuple):
    """The answer to a Ping."""


class Lend(NamedTuple):
    """The rank holds this lease now; ``attempt`` counts the ranks that have held it."""

    number: int
    start: int
    stop: int
    attempt: int


class Working(NamedTuple):
    """The rank has finished so many units of its lease."""

    number: int
    done: int


class Unwanted(NamedTuple):
    """Another rank was first with this lease."""

    number: int


class Returned(NamedTuple):
    """The result, see `disteval.plain.packed`, or the pickled exception of computing it."""

    value: bytes | None
    error: bytes | None = None


class Commit(NamedTuple):
    """The rank has finished its lease, which amounts to a part, or is the result.

    It has waited so many seconds for its first batch where it reads ahead.
    """

    number: int
    made: Part | Returned
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
        lost: The ranks that were lost, and how each was; one that went on later is among them.
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
    """The end of the evaluation: its result or its error, as in `Returned`."""

    value: bytes | None
    error: bytes | None
    report: LeaseReport


def packed(value: Any, name: str = "") -> bytes:
    """Pickle a value for an order or a reply, functions and classes of scripts included.

    Raises:
        UsageError: The pickled value is larger than a message may be; or a value with a name can't
            be pickled.
    """
    try:
        data = by_value.dumps(value)
    except Exception as error:
        if not name:
            raise
        raise UsageError(
            f"{name} can't be pickled, as it must be to reach the ranks: {describe_error(error)}; "
            f"make locks, open files and connections in the function instead"
        ) from error
    check_size(data, name or "an order or a reply", "send less at a time")
    return data


def check_size(data: bytes, what: str, remedy: str) -> None:
    """Check that bytes fit into a message.

    Raises:
        UsageError: They don't; it says what they are, and what to do.
    """
    if len(data) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise UsageError(
            f"{what}: {len(data)} bytes are too many for one message, which holds up to "
            f"{MAX_MESSAGE_BYTES}; {remedy}"
        )


def unpacked(data: bytes, name: str, in_step: bool = False) -> Any:
    """Unpickle a value that a rank has sent.

    Raises:
        WorldError: It can't be rebuilt in this process; ``in_step`` is as there.
    """
    try:
        return cloudpickle.loads(data)
    except Exception as error:
        raise WorldError(
            f"{name} can't be unpickled in the leader's process: {describe_error(error)}; send "
            f"numbers, text, lists and arrays instead, or a class that the leader can import and "
            f"that pickle can rebuild",
            in_step=in_step,
        ) from error


def failed(error: Exception, since: TracebackType | None) -> Reply:
    """Return the reply of a rank that raised an exception, from a call in its traceback on."""
    trace = "".join(traceback.format_exception(type(error), error, since))
    calls = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(since)]
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    # A SyntaxError begins with its place.
    begin = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), 0)
    try:
        data = bytes(cloudpickle.dumps(error))
    except Exception:  # an exception may hold anything; its traceback is sent as text all the same
        data = None
    return Reply(None, data, trace, "\n".join(lines[begin:]), calls[::-1])


def pickled_error(error: Exception) -> bytes:
    """Pickle an exception, or one with its description if its class can't be rebuilt elsewhere."""
    try:
        data = bytes(cloudpickle.dumps(error))
        pickle.loads(data)
    except Exception:  # of whatever the class does
        return pickle.dumps(HarnessError(describe_error(error)))
    return data


HEAD = struct.Struct("!i")
"""What `multiprocessing.connection.Connection` sends before a message: its size in bytes."""


def encode(message: Any) -> list[bytes]:
    """Return a message as `Connection` sends it, in pieces so that a large one is not copied."""
    data = pickle.dumps(message, protocol=5)
    head = HEAD.pack(len(data))
    return [head + data] if len(data) < _SMALL_BYTES else [head, data]


def take_messages(incoming: bytearray) -> list[Any]:
    """Take the messages that have arrived as a whole out of the bytes that have arrived.

    Raises:
        ConnectionError: They are something else than messages.
    """
    found: list[Any] = []
    while len(incoming) >= HEAD.size:
        (size,) = HEAD.unpack_from(incoming)
        if not 0 <= size <= MAX_MESSAGE_BYTES:
            raise ConnectionError(f"it sent a message of {size} bytes")
        end = HEAD.size + size
        if len(incoming) < end:
            break
        with memoryview(incoming) as data, data[HEAD.size : end] as body:
            try:
                found.append(pickle.loads(body))
            except Exception as error:  # of a process with another release
                what = f"it sent bytes that are no message ({describe_error(error)})"
                raise ConnectionError(what) from error
        del incoming[:end]
    return found
