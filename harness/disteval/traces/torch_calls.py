"""The collectives that ranks have called in torch.distributed, and the first at which they parted.

torch itself records them, in its flight recorder, which is on by default since torch 2.12 for gloo
and NCCL. Its record is read when an order has failed, by a thread of the rank that no collective
holds up; until then it costs nothing. Calls between two ranks are left out; a release of torch
without the record has no calls.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from disteval.errors import describe_error
from disteval.traces import current
from disteval.traces.folder import own_wall

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


class TorchCall(NamedTuple):
    """One call of a collective.

    Attributes:
        number: Its number in the group, from 1 up.
        name: The collective, such as ``all_reduce``.
        elements: The number of elements that each rank gives, or gets from a scatter. It is -1
            where ranks may give different numbers.
        dtype: Their type, as NumPy calls it where it has it; empty if there are none.
        inside: Whether the call has not returned.
        begin_ns: When it began, as of `time.time_ns`.
        group: The group's name; empty for the default group.
    """

    number: int
    name: str
    elements: int
    dtype: str
    inside: bool
    begin_ns: int
    group: str = ""

    @property
    def what(self) -> tuple[str, int, str]:
        """What must be the same on all ranks."""
        return self.name, self.elements, self.dtype

    def __str__(self) -> str:
        size = f"{self.elements} " if self.elements >= 0 else ""
        group = f" of group {self.group}" if self.group else ""
        what = f" ({size}{self.dtype})" if self.dtype else ""
        return f"{self.name} #{self.number}{group}{what}"


def recorded_calls(since_ns: int = 0) -> list[TorchCall] | None:
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
    for call in recorded_calls(since_ns) or []:
        at = call.begin_ns - own_wall()
        recorder.add("torch", str(call), at, at, number=call.number)


def read_calls(record: Mapping[str, Any], since_ns: int = 0) -> list[TorchCall]:
    """Return the calls in a record of torch's flight recorder; of groups of one name, the last's.

    Args:
        record: The record, which maps ``entries`` to the calls, the oldest first.
        since_ns: As for `recorded_calls`.
    """
    last: dict[str, int] = {}
    entries = []
    for entry in record.get("entries", []):
        if not entry["is_p2p"] and entry["time_created_ns"] >= since_ns:
            group = _group_of(entry)
            last[group] = max(entry["pg_id"], last.get(group, 0))
            entries.append(entry)
    return [_read(entry) for entry in entries if entry["pg_id"] == last[_group_of(entry)]]


def _group_of(entry: Mapping[str, Any]) -> str:
    name, description = entry["process_group"]
    if description == DEFAULT_GROUP:
        return ""
    # Groups of other ranks may have one description, as those of a dimension of a mesh.
    return str(name) if description == "undefined" else f"{name} ({description})"


def _read(entry: Mapping[str, Any]) -> TorchCall:
    name = entry["profiling_name"].partition(":")[2]
    side = "output" if name in _BY_OUTPUT else "input"
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    elements = -1 if name in _OF_ANY_SIZE else sum(math.prod(size) for size in sizes)
    dtype = ", ".join(dict.fromkeys(_DTYPES.get(each, each.lower()) for each in dtypes))
    inside = not (entry["retired"] or entry["state"] == "completed")
    number, begin = int(entry["collective_seq_id"]), int(entry["time_created_ns"])
    return TorchCall(number, name, elements, dtype, inside, begin, _group_of(entry))


Numbered = Mapping[int, TorchCall]
"""The calls of one rank in one group, by their numbers."""


class Parting(NamedTuple):
    """The first call at which ranks parted.

    Attributes:
        sentence: What each rank did.
        without: The ranks that made no such call.
    """

    sentence: str
    without: Sequence[int]


def find_parting(calls: Mapping[int, Sequence[TorchCall]]) -> Parting | None:
    """Return the first call at which ranks parted; None if there is none.

    In other groups than the default one only ranks that called different collectives have parted:
    one that made no call there may be in no such group, or be held up in the default group.

    Args:
        calls: The calls of each rank, as far as they are known.
    """
    partings = []
    for group in sorted({"", *(call.group for own in calls.values() for call in own)}):
        of_rank = _in_group(calls, group)
        members = {rank: own for rank, own in of_rank.items() if own or not group}
        found = _first_parting(members)
        lacks_a_call = None in found.values()
        if found and not (group and lacks_a_call):
            begin = min(call.begin_ns for call in found.values() if call)
            # Ranks may lack a call of the default group because they parted in another one.
            number = next(call.number for call in found.values() if call)
            without = [
                r for r, c in found.items() if c is None and not _is_past(number, members[r])
            ]
            parting = Parting(_describe(found, members, calls), without)
            partings.append((lacks_a_call, begin, parting))
    return min(partings)[2] if partings else None


def describe_last(calls: Mapping[int, Sequence[TorchCall]]) -> str:
    """Return the last call of each rank whose calls are known; an empty text if there is none."""
    alike: dict[str, list[int]] = {}
    for rank, own in calls.items():
        if own:
            alike.setdefault(str(max(own, key=lambda call: call.begin_ns)), []).append(rank)
    return ", ".join(f"{_ranks(ranks)} called {text}" for text, ranks in alike.items())


def _in_group(calls: Mapping[int, Sequence[TorchCall]], group: str) -> dict[int, Numbered]:
    return {
        rank: {call.number: call for call in own if call.group == group}
        for rank, own in calls.items()
    }


def _first_parting(of_rank: Mapping[int, Numbered]) -> dict[int, TorchCall | None]:
    """Return what each rank did in the first call that differs; nothing if there is none."""
    # What a rank has forgotten is not compared.
    begin = max((min(own) for own in of_rank.values() if own), default=1)
    for number in sorted({n for own in of_rank.values() for n in own if n >= begin}):
        found = {rank: own.get(number) for rank, own in of_rank.items()}
        if len({call and call.what for call in found.values()}) > 1:
            return found
    return {}


def _describe(
    found: Mapping[int, TorchCall | None],
    of_rank: Mapping[int, Numbered],
    calls: Mapping[int, Sequence[TorchCall]],
) -> str:
    """Describe one call: the ranks that did the same together, the smallest group first."""
    number = next(call.number for call in found.values() if call is not None)
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
            sentences += [f"rank {r} {_so_far(number, of_rank[r], calls[r])}" for r in ranks]
    return ", ".join(sentences)


def _so_far(number: int, own: Numbered, calls: Sequence[TorchCall]) -> str:
    """Describe what a rank did that made no such call."""
    if _is_past(number, own):
        return f"made a call #{number} that torch does not record, such as monitored_barrier"
    text = f"made no call after {own[max(own)]}" if own else "made no call"
    elsewhere = [call for call in calls if call.inside and call.group]
    return f"{text} and is in {elsewhere[-1]}" if elsewhere else text


def _is_past(number: int, own: Numbered) -> bool:
    """Return whether a rank has made later calls than one of this number."""
    return max(own, default=0) > number


def _ranks(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
