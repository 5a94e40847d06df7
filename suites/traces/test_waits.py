"""In a collective ranks wait for the last one to enter it; what it did for longer is the reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.traces import Row, TraceEvent, WorldTrace, find_waits, summarise, timeline

SECOND = 10**9


def gather(start: int, end: int, number: int = 1, **more: Any) -> TraceEvent:
    return TraceEvent("collective", "gather", start, end, {"number": number, "group": 1} | more)


def world(*ranks: list[TraceEvent]) -> WorldTrace:
    return WorldTrace(1, "", len(ranks), [Row(r, 1, {}, events) for r, events in enumerate(ranks)])


def pairs(*ranks: list[TraceEvent]) -> dict[tuple[int, int], int]:
    return {pair: total for pair, (total, _) in find_waits(world(*ranks)).by_pair().items()}


@given(st.lists(st.lists(st.integers(0, 100), min_size=3, max_size=3), min_size=1, max_size=4))
def test_all_wait_for_the_last_to_enter_an_all_gather(delays: list[list[int]]) -> None:
    """Ranks that leave together enter the next one after their own delay."""
    rows: list[list[TraceEvent]] = [[], [], []]
    left, expected = 0, {}
    for number, own in enumerate(delays, start=1):
        last = max(range(3), key=lambda rank: own[rank])
        end = left + max(own) + 5
        for rank, delay in enumerate(own):
            rows[rank].append(TraceEvent("compute", "predict", left, left + delay, {}))
            rows[rank].append(gather(left + delay, end, number))
            if delay < own[last]:
                pair = rank, last
                expected[pair] = expected.get(pair, 0) + own[last] - delay
        left = end
    assert pairs(*rows) == expected
    summary = summarise(world(*rows))
    for rank, times in enumerate(summary.ranks):
        waited = sum(total for (waiting, _), total in expected.items() if waiting == rank)
        assert round(times.seconds["waiting"] * SECOND) == waited
        assert round(times.seconds["compute"] * SECOND) == sum(own[rank] for own in delays)
        assert round(times.seconds["collective"] * SECOND) == 5 * len(delays)
    if expected:
        assert summary.slowest is not None and summary.slowest.kind == "compute"


def test_in_a_broadcast_that_its_root_leaves_early_only_the_root_is_waited_for() -> None:
    root, early, late = gather(50, 55, root=0), gather(10, 60, root=0), gather(90, 95, root=0)
    assert pairs([root], [early], [late]) == {(1, 0): 40}
    # One that all ranks leave together is waited for like an all-gather.
    together = [gather(start, 100, root=0) for start in (50, 10, 90)]
    assert pairs(*([each] for each in together)) == {(0, 2): 40, (1, 2): 80}


def test_collectives_of_other_groups_numbers_and_within_others_are_not_paired() -> None:
    inner = TraceEvent("collective", "torch.all_gather", 12, 18, {"number": 1, "group": "torch"})
    alone = TraceEvent("collective", "torch.all_gather", 40, 48, {"number": 1, "group": "torch"})
    assert pairs([gather(10, 20), inner], [gather(10, 20), alone]) == {}
    assert pairs([gather(10, 60, 1)], [gather(50, 60, 2)]) == {}
    assert pairs([gather(10, 60)], [gather(50, 60, group=2)]) == {}


@pytest.mark.parametrize("value", [[1], {"a": 1}, "1", 10**400, -1, True, None])
def test_values_that_no_trace_has_do_no_harm(value: Any) -> None:
    def rank(start: int) -> list[TraceEvent]:
        events = [gather(start, 9, number, root=value) for number in (1, value)]
        return [TraceEvent("data", "load", 0, start, {"samples": value}), *events]

    assert json.dumps(summarise(world(rank(3), rank(5))).to_json())


def test_a_rank_that_was_started_again_waits_in_its_own_collectives_alone() -> None:
    """Its collectives are counted from 1 again."""
    first, second = Row(0, 1, {}, [gather(0, 5)]), Row(0, 2, {}, [gather(100, 106)])
    found = summarise(WorldTrace(1, "", 2, [first, second, Row(1, 1, {}, [gather(104, 106)])]))
    waiting = [round(rank.seconds["waiting"] * SECOND) for rank in found.ranks]
    assert waiting == [0, 4, 0]


def test_the_reason_is_what_took_longer_since_the_collective_before() -> None:
    def rank(data: int, compute: int, before: int) -> list[TraceEvent]:
        events, at = [TraceEvent("compute", "predict", 0, before, {}), gather(before, 100)], 100
        for category, name, length in (("data", "load", data), ("compute", "predict", compute)):
            events.append(TraceEvent(category, name, at, at + length, {}))
            at += length
        return [*events, gather(at, 400, 2)]

    # Rank 1 computed longer before the first collective, where rank 0 was waited for.
    slowest = summarise(world(rank(10, 20, 95), rank(90, 30, 94), rank(12, 20, 94))).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.kind, slowest.name) == (1, "data", "load")
    assert slowest.more == pytest.approx(79e-9)
    assert slowest.waited == pytest.approx(178e-9)
    assert "rank 1:" in str(slowest) and "1.78e-07 s" in str(slowest)


def test_without_collectives_the_slowest_takes_longest_for_a_sample() -> None:
    def rank(computing: int, samples: int) -> list[TraceEvent]:
        load = TraceEvent("data", "load", 0, 10 * samples, {"samples": samples})
        return [load, TraceEvent("compute", "predict", 10 * samples, 10 * samples + computing, {})]

    slowest = summarise(world(rank(5_000, 50), rank(5_000, 10), rank(4_000, 45))).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.kind, slowest.waited) == (1, "compute", 0.0)
    assert summarise(world(rank(5_000, 50), rank(4_900, 50))).slowest is None


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30), st.sampled_from("abc")), max_size=9)
)
def test_each_moment_of_a_row_is_counted_once(spans: list[tuple[int, int, str]]) -> None:
    events = [TraceEvent(name, name, start, start + length, {}) for start, length, name in spans]
    found = [*timeline(events)]
    covered = [moment for doing in found for moment in range(doing.start, doing.end)]
    begin = min((event.start for event in events), default=0)
    end = max((event.end for event in events), default=0)
    assert covered == [*range(begin, end)]
    for doing in found:
        inside = [e for e in events if e.start <= doing.start and doing.end <= e.end]
        assert (doing.event in inside) if inside else doing.event is None


@pytest.mark.parametrize(
    ("header", "clock"),
    [
        ({"offset_ns": -2 * SECOND, "offset_error_ns": 10**6}, (-2.0, 0.001)),
        ({"offset_ns": -2 * SECOND, "offset_error_ns": -1}, (-2.0, None)),
        ({"offset_ns": 10**400, "offset_error_ns": True}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_offset_of_a_clock_that_is_ahead_is_told(
    header: dict[str, Any], clock: tuple[float | None, float | None]
) -> None:
    alone = WorldTrace(1, "", 1, [Row(0, 1, header, [gather(0, 9)])])
    (rank,) = summarise(alone).to_json()["ranks"]
    assert (rank["clock"]["offset_seconds"], rank["clock"]["error_seconds"]) == clock
