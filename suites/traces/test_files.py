"""What was recorded is what is read, also from files that were not written to their end."""

import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.traces import (
    Place,
    Recorder,
    TraceEvent,
    TraceFolder,
    WorldTrace,
    cap_for,
    find_waits,
    merged_events,
    own_clock,
    place_from_zero,
    read_worlds,
    start_with,
    traces,
)

NAMES = st.text(max_size=20)
NUMBERS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
ARGUMENTS = st.dictionaries(st.sampled_from(["number", "root", "what"]), NUMBERS, max_size=3)
DAY = 86_400 * 10**9


@st.composite
def recorded(draw: st.DrawFn) -> list[TraceEvent]:
    """Draw events of one rank, in any order and overlapping in any way."""
    return [
        TraceEvent(draw(NAMES), draw(NAMES), start, start + draw(st.integers(0, 5_000)), arguments)
        for start in draw(st.lists(st.integers(0, 20_000) | st.integers(0, 50 * DAY), max_size=30))
        if (arguments := draw(ARGUMENTS)) is not None
    ]


def a_world(folder: Path, ranks: list[list[TraceEvent]]) -> WorldTrace:
    """Write a trace of these events, and read it."""
    place = place_from_zero(folder, "of a test", len(ranks))
    for rank, events in enumerate(ranks):
        recorder = Recorder(place, rank)
        for category, name, start, end, arguments in events:
            recorder.add(category, name, start, end, **arguments)
        recorder.close()
    (world,) = read_worlds(folder)
    return world


@given(ranks=st.lists(recorded(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_what_was_recorded_is_read_and_merged(
    ranks: list[list[TraceEvent]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = a_world(tmp_path_factory.mktemp("trace"), ranks)
    assert [row.events for row in world.ranks] == ranks
    assert all(row.is_whole and row.dropped == 0 for row in world.ranks)
    merged = [json.loads(json.dumps(event)) for event in merged_events(world, find_waits(world))]
    complete = [event for event in merged if event["ph"] == "X"]
    assert len(complete) == sum(map(len, ranks))
    for rank, events in enumerate(ranks):
        found = [e for e in complete if e["tid"] % 1_000_000 == rank + 2]
        shown = [
            (e["cat"], e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in found
        ]
        assert sorted(shown) == sorted((c, n, s, e - s) for c, n, s, e, _ in events)


def two_events(folder: Path) -> Path:
    a_world(
        folder, [[TraceEvent("data", "load", 0, 5, {}), TraceEvent("compute", "predict", 5, 9, {})]]
    )
    return folder / "world-1-rank-00000.jsonl"


def test_a_file_that_ends_anywhere_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = two_events(tmp_path)
    whole = file.read_bytes()
    header = whole.index(b"\n")
    counts = []
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        (world,) = read_worlds(tmp_path)
        counts.append(len(world.ranks[0].events))
        assert not world.ranks[0].is_whole
        assert bool(world.ranks[0].header) == (length > header)
    assert sorted({*counts}) == [0, 1, 2]
    assert counts == sorted(counts)


def test_events_past_the_cap_are_counted_and_not_written(tmp_path: Path) -> None:
    recorder = Recorder(Place(str(tmp_path), "run", clock=own_clock(), cap=5), 0)
    for at in range(12):
        recorder.add("data", "load", at, at + 1)
    recorder.close()
    (world,) = read_worlds(tmp_path)
    assert (len(world.ranks[0].events), world.ranks[0].dropped) == (5, 7)
    assert cap_for(1) == 200_000 and cap_for(1_000) * 1_000 == 1_600_000


def test_texts_and_numbers_that_json_lacks_are_bounded(tmp_path: Path) -> None:
    given = [TraceEvent("data", "x" * 1_000, 0, 1, {"a": "y" * 1_000, "b": math.nan, "c": {1: 2}})]
    event = a_world(tmp_path, [given]).ranks[0].events[0]
    assert len(event.name) == len(event.arguments["a"]) == 200
    assert event.arguments["b"] == "nan" and event.arguments["c"] == "{1: 2}"


def test_a_recorder_is_the_threads_own_and_ends_with_its_block(tmp_path: Path) -> None:
    assert traces.current() is None
    with traces.recording(tmp_path) as recorder:
        assert traces.current() is recorder
        with traces.span("data", "load", samples=3):
            pass
        if (pid := os.fork()) == 0:  # a worker that reads samples, say
            os._exit(traces.current() is not None)
        assert os.waitpid(pid, 0)[1] == 0
    assert traces.current() is None
    (world,) = read_worlds(tmp_path)
    assert world.ranks[0].events[0].arguments == {"samples": 3}
    with pytest.raises(UsageError, match=str(tmp_path)):
        traces.recording(tmp_path).__enter__()


def test_an_empty_folder_another_file_and_other_runs_are_refused(tmp_path: Path) -> None:
    def refused(take: Callable[[Path], Any], path: Path, named: str) -> None:
        with pytest.raises(UsageError) as caught:
            take(path)
        assert str(path) in str(caught.value) and named in str(caught.value)

    refused(read_worlds, tmp_path / "nowhere", "")
    refused(read_worlds, tmp_path, "no trace")
    file = two_events(tmp_path)
    refused(TraceFolder, tmp_path, file.name)
    refused(read_worlds, file, "file")
    refused(TraceFolder, file, "file")
    two_events(tmp_path / "other").rename(tmp_path / "world-1-rank-00001.jsonl")
    refused(read_worlds, tmp_path, "2 runs")


@pytest.mark.parametrize(
    "line",
    [
        '["y", "x", 1e99, 1, {}]',
        f'["y", "x", 1{"0" * 400}, 1, {{}}]',
        '["y", "x", "1", 1, {}]',
        '["y", "x", 1, -1, {}]',
        '["y", "x", 1, 1]',
        '{"dropped": true}',
        "[" * 100_000,
        "this is no JSON",
    ],
    ids=range(8),
)
def test_a_damaged_file_is_refused(line: str, tmp_path: Path) -> None:
    file = two_events(tmp_path)
    first, rest = file.read_text().split("\n", 1)
    file.write_text(f"{first}\n{line}\n{rest}")
    with pytest.raises(UsageError, match=file.name):
        list(read_worlds(tmp_path))


def test_a_later_rank_goes_on_without_a_trace_where_it_can_write_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").touch()
    place = Place(str(tmp_path / "run"), "run", clock=own_clock())
    with pytest.raises(UsageError, match="run"):
        start_with(pickle.dumps(place), 1, "load threads")
    start_with(pickle.dumps(place), 1, "run evaluate")  # one that joins while others evaluate
    assert traces.current() is None and "no trace" in caplog.text
    caplog.clear()
    second = Place(str(tmp_path / "run"), "run", world=2, clock=own_clock())
    Recorder(second, None).close()  # of a world that replaces a lost one
    assert "not recorded" in caplog.text
