"""The collectives that ranks have called in torch.distributed, and the first at which they parted.

torch itself records them, in its flight recorder, which is on by default since torch 2.12 for gloo
and NCCL. Its record is read when an order has failed, by a thread of the rank that no collective
holds up; until then it costs nothing. Calls between two ranks, and those of other groups than the
default one, are left out; a release of torch without the record has no calls.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disteval.errors import describe_error
from disteval.traces import current
from disteval.traces.place import own_wall

_log = logging.getLogger("disteval.traces")

DEFAULT_GROUP = "default_pg"
"""How torch's recorder describes the default group."""

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
}
# The sizes of one side of these may differ from rank to rank.
_BY_OUTPUT = ("scatter",)
_OF_ANY_SIZE = ("all_to_all", "all_to_all_single", "alltoall", "alltoall_base")


class Call(NamedTuple):
    """One call of a collective of the default group.

    Attributes:
        number: Its number in the group, from 1 up.
        name: The collective, such as ``all_reduce``.
        elements: The number of elements that each rank gives, or gets from a scatter. It is -1
            where ranks may give different numbers.
        dtype: Their type, as NumPy calls it where it has it; empty if there are none.
        inside: Whether the call has not returned.
        begin_ns: When it began, as of `time.time_ns`.
    """

    number: int
    name: str
    elements: int
    dtype: str
    inside: bool
    begin_ns: int

    @property
    def what(self) -> tuple[str, int, str]:
        """What must be the same on all ranks."""
        return self.name, self.elements, self.dtype

    def __str__(self) -> str:
        size = f"{self.elements} " if self.elements >= 0 else ""
        return f"{self.name} #{self.number}" + (f" ({size}{self.dtype})" if self.dtype else "")


def recorded_calls(since_ns: int = 0) -> list[Call] | None:
    """Return the calls of this process that torch remembers; None if it has no record, or another.

    What cannot be read ends no rank: it is said in the rank's output.

    Args:
        since_ns: The time of `time.time_ns` at which the process joined its group.
    """
    torch = sys.modules.get("torch")
    library = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    dump = getattr(library, "_dump_fr_trace_json", None)
    try:
        return None if dump is None else read_calls(json.loads(dump()), since_ns)
    except Exception as error:  # another release of torch may record otherwise
        sys.stderr.write(f"torch's record can't be read: {describe_error(error)}\n")
        return None


def trace_calls(since_ns: int) -> None:
    """Add the calls of this process to its trace, if it records one; they are marks without length.

    torch does not note when a call of gloo returns.
    """
    if (recorder := current()) is None:
        return
    try:
        calls = recorded_calls(since_ns) or []
    except Exception as error:  # another release may write another form; leaving must go on
        _log.warning("torch's record can't be read (%s); its calls are not in the trace", error)
        return
    for call in calls:
        at = call.begin_ns - own_wall()
        recorder.add("torch", str(call), at, at, number=call.number)


def read_calls(record: Mapping[str, Any], since_ns: int = 0) -> list[Call]:
    """Return the calls of the last default group in a record of torch's flight recorder.

    Args:
        record: The record, which maps ``entries`` to the calls, the oldest first.
        since_ns: As for `recorded_calls`.
    """
    entries = [
        entry
        for entry in record.get("entries", [])
        if entry["process_group"][1] == DEFAULT_GROUP
        and not entry["is_p2p"]
        and entry["time_created_ns"] >= since_ns
    ]
    last = max((entry["pg_id"] for entry in entries), default=0)
    return [_read(entry) for entry in entries if entry["pg_id"] == last]


def _read(entry: Mapping[str, Any]) -> Call:
    name = entry["profiling_name"].partition(":")[2]
    side = "output" if name in _BY_OUTPUT else "input"
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    elements = -1 if name in _OF_ANY_SIZE else sum(math.prod(size) for size in sizes)
    dtype = ", ".join(dict.fromkeys(_DTYPES.get(each, each.lower()) for each in dtypes))
    inside = not (entry["retired"] or entry["state"] == "completed")
    return Call(entry["collective_seq_id"], name, elements, dtype, inside, entry["time_created_ns"])


def describe_parting(calls: Mapping[int, Sequence[Call]]) -> str:
    """Return what each rank did in the first call at which ranks parted; an empty text without one.

    Args:
        calls: The calls of each rank, as far as they are known.
    """
    of_rank = {rank: {call.number: call for call in own} for rank, own in calls.items()}
    # What a rank has forgotten is not compared.
    begin = max((min(own) for own in of_rank.values() if own), default=1)
    end = max((max(own) for own in of_rank.values() if own), default=0)
    for number in range(begin, end + 1):
        found = {rank: own.get(number) for rank, own in of_rank.items()}
        if len({call and call.what for call in found.values()}) > 1:
            return _describe(found, of_rank)
    return ""


def _describe(found: Mapping[int, Call | None], of_rank: Mapping[int, Mapping[int, Call]]) -> str:
    """Describe one call: the ranks that did the same together, the smallest group first."""
    alike: dict[str, list[int]] = {}
    for rank, call in found.items():
        alike.setdefault("" if call is None else str(call), []).append(rank)
    sentences = []
    for text, ranks in sorted(alike.items(), key=lambda item: (len(item[1]), item[1])):
        if text:
            inside = all(call.inside for call in map(found.get, ranks) if call is not None)
            be = "is" if len(ranks) == 1 else "are"
            sentences.append(f"{_ranks(ranks)} {f'{be} in' if inside else 'called'} {text}")
        else:
            sentences += [f"rank {rank} {_so_far(of_rank[rank])}" for rank in ranks]
    return ", ".join(sentences)


def _so_far(own: Mapping[int, Call]) -> str:
    return f"made no call after {own[max(own)]}" if own else "made no call"


def _ranks(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
