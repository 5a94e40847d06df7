"""Results that differ from the expected ones: what a rank sends of them, and their description."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from disteval.conformance.fingerprint import Gathered, describe, digest
from disteval.contract import BaseDistBackend
from disteval.world import report_progress, send_note

if TYPE_CHECKING:
    from disteval.conformance.rule import Trial

# The bytes of wrong results that a rank sends in one order; later results are only described.
_MOST_BYTES = 1 << 21
_LONG_BYTES = 1 << 10
_PIECE_BYTES = 1 << 12


class Long(NamedTuple):
    """What is sent instead of many bytes: their type, number, digest, and checksums of pieces."""

    kind: str
    length: int
    digest: str
    pieces: Sequence[int]


Wrong = tuple[str, bytes]
"""Results of a trial that differ on a rank: in words, and pickled unless they are too large."""


def compare(
    function: Callable[[BaseDistBackend, Any], list[Any]],
    backend: BaseDistBackend,
    tasks: list[tuple[Any, list[str]]],
) -> dict[int, Wrong]:
    """Run a function with the argument of each task, and compare its results with the digests.

    Returns:
        The results that differ, and changed arguments, by the number of the task.
    """
    wrong: dict[int, Wrong] = {}
    left = _MOST_BYTES
    for number, (argument, digests) in enumerate(tasks):
        before = digest(argument)
        results = function(backend, argument)
        changed = digest(argument) != before  # of all functions here, none does that itself
        if changed or [digest(result) for result in results] != digests:
            text = ", ".join(map(describe, results))
            text += f", and its input became {describe(argument)}" if changed else ""
            try:
                pickled = pickle.dumps([_shortened(result) for result in results], protocol=5)
            except Exception:  # a broken backend may return anything
                pickled = b""
            pickled = pickled if len(pickled) <= left else b""
            wrong[number] = text, pickled
            left -= len(pickled)
            send_note(number)  # the ranks may hang in the next one
        report_progress(number + 1, len(tasks))
    return wrong


def _shortened(result: Any) -> Any:
    if type(result) is Gathered:
        return Gathered(map(_shortened, result))
    if type(result) in (bytes, bytearray) and len(result) > _LONG_BYTES:
        return Long(type(result).__name__, len(result), digest(result), _pieces_of(result))
    return result


def _pieces_of(data: bytes | bytearray) -> list[int]:
    """Return a checksum of each 4 KiB of bytes."""
    view = memoryview(data)
    return [crc32(view[i : i + _PIECE_BYTES]) for i in range(0, len(data), _PIECE_BYTES)]


def same(got: Any, expected: Any) -> bool:
    """Return whether two objects are the same to the last bit; the first may be a `Long`."""
    if type(got) is Long:
        return digest(expected) == got.digest
    if type(got) is Gathered and type(expected) is Gathered:
        return len(got) == len(expected) and all(map(same, got, expected))
    return digest(got) == digest(expected)


def where_differs(got: Any, expected: Any) -> str:
    """Say where long bytes of the expected length differ; of anything else, say nothing."""
    if type(got) is Gathered and type(expected) is Gathered:
        places = enumerate(map(where_differs, got, expected))
        return "; ".join(f"in entry {rank}, {place}" for rank, place in places if place)
    are_bytes = type(got) is Long and type(expected) in (bytes, bytearray)
    if not are_bytes or len(expected) != got.length:
        return ""
    pieces = enumerate(zip(got.pieces, _pieces_of(expected), strict=True))
    wrong = [number for number, (one, other) in pieces if one != other]
    if not wrong:
        return ""
    end = min((wrong[-1] + 1) * _PIECE_BYTES, got.length)
    return f"bytes {wrong[0] * _PIECE_BYTES} to {end - 1} differ, or some of them"


@dataclass
class Difference:
    """The results of one rank that differ from the expected ones.

    Attributes:
        rank: The rank.
        trial: The example.
        before: The collectives that came before those of the example, oldest first.
        said: The rank's results in words.
        pickled: The results, as in `Wrong`.
        got: Its results; None where they were not sent or can't be rebuilt here.
    """

    rank: int
    trial: Trial
    before: Sequence[Any]
    said: str
    pickled: bytes
    got: list[Any] | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.got = pickle.loads(self.pickled) if self.pickled else None
        except Exception:  # a class that only the ranks can import
            self.got = None

    @property
    def expected(self) -> list[Any]:
        """The expected results."""
        return self.trial.expected[self.rank]

    @property
    def text(self) -> str:
        """The results and the expected ones, and where long bytes differ, for people."""
        lines = [f"rank {self.rank} got {self.said}"]
        lines.append(f"instead of {', '.join(map(describe, self.expected))}")
        lines += filter(None, map(where_differs, self.got or (), self.expected))
        return "\n  ".join(lines)
