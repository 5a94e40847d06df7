"""What was seen of a failure: the material from which `disteval.conformance.causes` names a cause.

Ranks send the results that differ along with their descriptions, as far as these are small.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from disteval.conformance.fingerprint import Gathered, describe, digest
from disteval.errors import WorldError
from disteval.world import RankStatus

if TYPE_CHECKING:
    from disteval.conformance.rules import Trial
    from disteval.conformance.trials import Collective

MOST_BYTES = 1 << 21
"""The bytes of wrong results that a rank sends in one order; later results are only described."""

_LONG_BYTES = 1 << 10
_PIECE_BYTES = 1 << 12


class Long(NamedTuple):
    """What is sent instead of many bytes: their type, number, digest, and checksums of pieces."""

    kind: str
    length: int
    digest: str
    pieces: Sequence[int]


class Results(list[Any]):
    """The results of one trial on one rank, with what the rank found out besides.

    Attributes:
        facts: Anything that pickles and that a cause of the rule asks for.
    """

    facts: Any = None


class Wrong(NamedTuple):
    """The results of a trial that differ on a rank.

    Attributes:
        text: Their description, for people.
        results: The pickled results; nothing where they are too large or can't be pickled.
        facts: The `Results.facts` of the trial.
        input_changed: Whether the function's argument was changed.
    """

    text: str
    results: bytes
    facts: Any
    input_changed: bool


def wrong_of(results: list[Any], argument: Any, input_changed: bool, most_bytes: int) -> Wrong:
    """Describe the results of a trial that differ; they are sent if they have few bytes."""
    text = ", ".join(map(describe, results))
    text += f", and its input became {describe(argument)}" if input_changed else ""
    try:
        pickled = pickle.dumps([_shortened(result) for result in results], protocol=5)
    except Exception:  # a broken backend may return anything
        pickled = b""
    pickled = pickled if len(pickled) <= most_bytes else b""
    return Wrong(text, pickled, getattr(results, "facts", None), input_changed)


def _shortened(result: Any) -> Any:
    if type(result) is Gathered:
        return Gathered(map(_shortened, result))
    if type(result) in (bytes, bytearray) and len(result) > _LONG_BYTES:
        return Long(type(result).__name__, len(result), digest(result), pieces_of(result))
    return result


def same(got: Any, expected: Any) -> bool:
    """Return whether two objects are the same to the last bit; the first may be a `Long`."""
    if type(got) is Long:
        return is_as_long(got, expected) and digest(expected) == got.digest
    if type(got) is Gathered and type(expected) is Gathered:
        return len(got) == len(expected) and all(map(same, got, expected))
    return digest(got) == digest(expected)


def pieces_of(data: bytes | bytearray) -> list[int]:
    """Return a checksum of each 4 KiB of bytes."""
    view = memoryview(data)
    return [crc32(view[i : i + _PIECE_BYTES]) for i in range(0, len(data), _PIECE_BYTES)]


def is_as_long(got: Any, expected: Any) -> bool:
    """Return whether long bytes came with the expected length."""
    as_long = type(got) is Long and type(expected) in (bytes, bytearray)
    return as_long and len(expected) == got.length


def wrong_pieces(got: Long, expected: bytes | bytearray) -> list[int]:
    """Return the numbers of the pieces that differ in bytes of the same length."""
    pairs = zip(got.pieces, pieces_of(expected), strict=True)
    return [number for number, (one, other) in enumerate(pairs) if one != other]


def where_differs(got: Any, expected: Any) -> str:
    """Say where long bytes of the expected length differ; of anything else, say nothing."""
    if type(got) is Gathered and type(expected) is Gathered:
        places = enumerate(map(where_differs, got, expected))
        return "; ".join(f"in entry {rank}, {place}" for rank, place in places if place)
    if not is_as_long(got, expected) or not (wrong := wrong_pieces(got, expected)):
        return ""
    end = min((wrong[-1] + 1) * _PIECE_BYTES, got.length)
    return f"bytes {wrong[0] * _PIECE_BYTES} to {end - 1} differ, or some of them"


def key_of(got: Any) -> str:
    """Return the digest of an object, also of one that came as a `Long`."""
    return got.digest if type(got) is Long else digest(got)


@dataclass
class Difference:
    """The results of one rank that differ from the expected ones.

    Attributes:
        rank: The rank.
        trial: The example.
        before: The collectives that came before those of the example, oldest first.
        wrong: What the rank sent.
        got: Its results; None where they were not sent or can't be rebuilt here.
        expected: The expected results.
    """

    rank: int
    trial: Trial
    before: Sequence[Collective]
    wrong: Wrong
    got: list[Any] | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.got = pickle.loads(self.wrong.results) if self.wrong.results else None
        except Exception:  # a class that only the ranks can import
            self.got = None

    @property
    def expected(self) -> list[Any]:
        """The expected results."""
        return self.trial.expected[self.rank]

    @property
    def arg(self) -> Any:
        """The argument that the rank got."""
        return self.trial.args[self.rank]

    @property
    def text(self) -> str:
        """The results and the expected ones, and where long bytes differ, for people."""
        lines = [f"rank {self.rank} got {self.wrong.text}"]
        lines.append(f"instead of {', '.join(map(describe, self.expected))}")
        lines += filter(None, map(where_differs, self.got or (), self.expected))
        return "\n  ".join(lines)


@dataclass(frozen=True)
class Seen:
    """What was seen of a failure.

    Attributes:
        files: The source files of the backend's class and of the classes that it extends.
        world_size: The number of ranks.
        error: The error of the world, if a rank raised, hung or was lost; None if results differ.
        shown: The wrong results of the example that is shown.
        every: The wrong results of all examples that failed, at every try.
        facts: What the check itself found; what it is depends on the rule.
    """

    files: Sequence[str]
    world_size: int
    error: WorldError | None = None
    shown: Sequence[Difference] = ()
    every: Sequence[Difference] = ()
    facts: Any = None

    @property
    def errors(self) -> Mapping[int, Exception]:
        """The exceptions that ranks raised, by rank."""
        return self.error.errors if self.error else {}

    @property
    def ranks(self) -> Sequence[RankStatus]:
        """What is known of each rank; nothing if results differ."""
        return self.error.ranks if self.error else ()

    @property
    def lost(self) -> RankStatus | None:
        """The rank that was lost first; None if there is none."""
        some = self.error.lost[:1] if self.error else ()
        return next((status for status in self.ranks if status.rank in some), None)


def source_files(cls: type) -> list[str]:
    """Return the source files of a backend's class and of what it extends, but for the contract."""
    found = []
    for each in cls.__mro__:
        with suppress(TypeError, OSError):  # a class of C, or of a shell
            if not each.__module__.startswith("disteval."):
                found.append(inspect.getsourcefile(each) or "")
    return found


Cause = Callable[[Seen], str]
"""A usual cause of a failure: returns its sentence where it was seen, or nothing."""


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
