"""The messages that a leader and its ranks exchange, and how a value is pickled into one."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, cast

import cloudpickle

from disteval.errors import HarnessError, UsageError, WorldError, describe_error

MAX_MESSAGE_BYTES = 1 << 30
"""The largest order or reply; 1 GiB."""

MAX_VALUE_BYTES = 1 << 20
"""The largest value that a rank can publish; values are addresses and identifiers, not data."""

MAX_KEYS = 1_000
"""How many keys one rank may publish in one world."""

MAX_NOTE_BYTES = 1 << 20
"""The largest note; a note describes an order's progress and does not carry data."""

_ENVELOPE_BYTES = 1 << 20  # left for the function or the traceback beside the value


class Hello(NamedTuple):
    """The first message of a rank: its number, and the process and thread that it runs in.

    ``host`` is the name of its host, ``machine`` tells machines and namespaces apart where two
    have one name, and ``directory`` holds the rank's files there. The leader adds the address.
    """

    rank: int
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


def packed(value: Any, name: str = "") -> bytes:
    """Pickle a value for an order or a reply, functions and classes of scripts included.

    Raises:
        UsageError: The pickled value is larger than a message may be; or a value with a name can't
            be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        if not name:
            raise
        raise UsageError(
            f"{name} can't be pickled, as it must be to reach the ranks: {describe_error(error)}; "
            f"make locks, open files and connections in the function instead"
        ) from error
    if len(data) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise UsageError(
            f"{len(data)} bytes are too many for one order or reply; "
            f"it holds up to {MAX_MESSAGE_BYTES}"
        )
    return data


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


def send(connection: Connection, message: Any) -> None:
    """Send one message."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """Receive one message; raise EOFError or OSError when the other end is gone."""
    return pickle.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
