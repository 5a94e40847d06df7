"""The file with all rows is in the Trace Event Format, as its document and Perfetto demand it."""

import json
import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.traces import (
    MERGED,
    Recorder,
    find_waits,
    place_from_zero,
    read_worlds,
    write_merged,
)

METADATA = {
    "process_name": {"name": str},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}
FIELDS = {
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
    "X": {
        "name": str, "cat": str, "ph": str, "pid": int, "tid": int, "ts": float, "dur": float,
        "args": dict,
    },
    "s": {"name": str, "cat": str, "ph": str, "pid": int, "tid": int, "ts": float, "id": int},
}  # fmt: skip
FIELDS["f"] = FIELDS["s"] | {"bp": str}

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["", 'a "quote" 😀', "line\nbreak", "\x1b[0m", "5%s", "C:\\"]
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS


def parsed(data: bytes) -> Any:
    """Parse JSON as RFC 8259 has it: UTF-8, no NaN, no infinity, no key twice."""

    def refuse(text: str) -> Any:
        raise AssertionError(f"{text} is no JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    text = data.decode("utf-8")
    # Perfetto 52 opens no file that has a character escaped as two surrogates, or a backslash
    # before the quote at the end of a text.
    assert not re.search(r"\\u[dD][89a-fA-F]", text)
    assert "\\\\" not in text
    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def check_events(events: list[dict[str, Any]]) -> None:
    """Hold all events to the format: fields, types, nesting, and arrows from event to event."""
    flows: dict[int, list[dict[str, Any]]] = {}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        fields = FIELDS[event["ph"]]
        assert event.keys() == fields.keys()
        for name, value in event.items():
            assert isinstance(value, (int, float) if fields[name] is float else fields[name])
            assert not isinstance(value, bool)
        assert 0 <= event["pid"] < 2**31 and 0 <= event["tid"] < 2**31
        if event["ph"] == "M":
            kinds = METADATA[event["name"]]
            assert {name: type(value) for name, value in event["args"].items()} == kinds
            continue
        assert math.isfinite(event["ts"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert all(
                value is None or isinstance(value, (str, int, float))
                for value in event["args"].values()
            )
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            flows.setdefault(event["id"], []).append(event)
    for begin, end in flows.values():  # each has two
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert all(begin[name] == end[name] for name in ("name", "cat", "ts"))
        for each in (begin, end):
            assert any(
                around["ts"] <= each["ts"] < around["ts"] + around["dur"]
                for around in rows[each["pid"], each["tid"]]
            )
    for row in rows.values():
        spans = [(round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"]))) for e in row]
        for at, (first, end) in enumerate(spans):
            for other, its_end in spans[at + 1 :]:
                inside = first <= other <= its_end <= end or other <= first <= end <= its_end
                assert inside or other >= end or first >= its_end


@st.composite
def ranks_of_events(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Draw what three ranks record: collectives with numbers, and anything else."""
    moment = st.integers(-1_000, 10_000)
    anything = st.fixed_dictionaries(
        {"category": TEXTS, "name": TEXTS, "arguments": st.dictionaries(TEXTS, VALUES, max_size=3)}
    )
    gather = st.fixed_dictionaries(
        {
            "category": st.just("collective"),
            "name": st.just("gather"),
            "arguments": st.fixed_dictionaries(
                {"number": st.integers(1, 4), "group": st.just(1), "root": st.none() | st.just(0)}
            ),
        }
    )
    event = st.tuples(gather | anything, moment, st.integers(0, 3_000))
    return [
        [what | {"start": at, "end": at + for_} for what, at, for_ in draw(st.lists(event))]
        for _ in range(3)
    ]


@given(ranks=ranks_of_events())
@settings(max_examples=60, deadline=None)
def test_the_file_with_all_rows_is_in_the_format(
    ranks: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    place = place_from_zero(folder, "of a 'test' 😀", len(ranks))
    for rank, events in enumerate(ranks):
        recorder = Recorder(place, rank)
        for event in events:
            what = event["category"], event["name"], event["start"], event["end"]
            recorder.add(*what, **event["arguments"])
        recorder.close()
    (world,) = read_worlds(folder)
    write_merged(folder / MERGED, [(world, find_waits(world))])
    merged = parsed((folder / MERGED).read_bytes())
    assert merged.keys() == {"displayTimeUnit", "traceEvents"}
    assert merged["displayTimeUnit"] == "ms"
    check_events(merged["traceEvents"])
    kinds = Counter(event["ph"] for event in merged["traceEvents"])
    assert kinds["X"] == sum(map(len, ranks))
