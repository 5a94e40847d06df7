"""The first call of torch.distributed at which ranks parted is named from what torch recorded."""

import re
from typing import Any

import pytest

from suites.helpers.traces import PostMortem, RankStatus, TorchCall, find_parting, read_calls


def entry(number: int, name: str, *, returned: bool = True, **changed: Any) -> dict[str, Any]:
    """Return an entry of torch's flight recorder for gloo."""
    return {
        "collective_seq_id": number,
        "profiling_name": f"gloo:{name}",
        "process_group": ["0", "default_pg"],
        "pg_id": 0,
        "is_p2p": False,
        "time_created_ns": number,
        "input_sizes": [[2]],
        "input_dtypes": ["Double"],
        "output_sizes": [[2]],
        "output_dtypes": ["Double"],
        "state": "scheduled",
        "retired": returned,
    } | changed


def calls(*entries: dict[str, Any]) -> list[TorchCall]:
    return read_calls({"entries": entries})


def facts(text: str) -> list[tuple[str, ...]]:
    """Return what a report says of the calls of some ranks each.

    Each entry has the ranks, what they do, the call, and the elements that it moves.
    """
    found = []
    for part in re.split(r", (?=ranks? \d)", text.strip()):
        ranks = re.match(r"ranks? ([\d, and]*\d)", part)
        assert ranks is not None, text
        does = next(word for word in ("no call", "called", "made a call", "in") if word in part)
        calls = re.findall(r"\w+ #\d+(?: of group \d+)?", part)
        sizes = re.findall(r"\((\d+ \w+)", part)
        numbers = " ".join(re.findall(r"\d+", ranks[1]))
        found.append((numbers, does, *calls, *sizes))
    return found


def parted(calls: dict[int, list[TorchCall]]) -> list[tuple[str, ...]]:
    parting = find_parting(calls)
    assert parting is not None
    return facts(parting.sentence)


SUM = entry(1, "all_reduce")
WAITING = entry(2, "all_gather", returned=False)


TWO = "2 float64"
OTHERS = ("0 2", "in", "all_gather #2", TWO)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([entry(2, "all_reduce", returned=False)], ("1", "in", "all_reduce #2", TWO)),
        (
            [entry(2, "all_gather", input_sizes=[[3, 2]]), entry(3, "barrier", returned=False)],
            ("1", "called", "all_gather #2", "6 float64"),
        ),
        (
            [entry(2, "all_gather", input_dtypes=["Long"], returned=False)],
            ("1", "in", "all_gather #2", "2 int64"),
        ),
        ([], ("1", "no call", "all_reduce #1", TWO)),
        ([entry(2, "all_gather")], None),
        ([entry(2, "all_gather", input_sizes=[[1, 2]])], None),
    ],
    ids=["collective", "size", "type", "skipped", "slower", "shape of the same size"],
)
def test_the_first_call_that_differs_is_named(
    second: list[Any], told: tuple[str, ...] | None
) -> None:
    found = {0: calls(SUM, WAITING), 1: calls(SUM, *second), 2: calls(SUM, WAITING)}
    parting = find_parting(found)
    assert (parting and facts(parting.sentence)) == (told and [told, OTHERS])
    seen = PostMortem("no progress", [RankStatus(rank, calls=own) for rank, own in found.items()])
    assert seen.parting == parting


OTHER = {"process_group": ["1", "undefined"], "pg_id": 1}


def test_ranks_that_parted_in_another_group_are_named_and_not_those_that_wait_for_them() -> None:
    waiting = [SUM, entry(2, "barrier", input_sizes=[], input_dtypes=[], returned=False)]
    first = calls(SUM, entry(1, "all_reduce", **OTHER, returned=False))
    second = calls(SUM, entry(1, "all_gather", **OTHER, returned=False))
    reduces, gathers = (f"{name} #1 of group 1" for name in ("all_reduce", "all_gather"))
    assert parted({0: first, 1: second, 2: calls(*waiting)}) == [
        ("0", "in", reduces, TWO),
        ("1", "in", gathers, TWO),
    ]
    # Rank 1 may be in no such group, so what it does in the default one is told.
    assert parted({0: first, 1: calls(*waiting), 2: calls(*waiting)}) == [
        ("0", "no call", "all_reduce #1", reduces, TWO, TWO),
        ("1 2", "in", "barrier #2"),
    ]
    described = calls(entry(1, "all_reduce", process_group=["2", "mesh_dp"], pg_id=2))
    assert "2 (mesh_dp)" in str(described[0])


def test_a_number_that_torch_has_not_recorded_is_no_missing_call() -> None:
    later = [SUM, entry(3, "all_reduce", returned=False)]
    mine, other = parted({0: calls(*later), 1: calls(SUM, entry(2, "all_reduce"))})
    assert mine[:3] == ("0", "made a call", "call #2")
    assert other[:3] == ("1", "called", "all_reduce #2")


def test_a_rank_without_a_call_and_one_without_a_record_differ() -> None:
    found = parted({0: calls(SUM), 1: []})
    assert found == [("0", "called", "all_reduce #1", TWO), ("1", "no call")]
    statuses = [RankStatus(0, calls=calls(SUM)), RankStatus(1)]
    assert PostMortem("rank 1 was lost", statuses).parting is None


def test_what_ranks_may_do_differently_is_no_parting() -> None:
    root = calls(
        entry(1, "gather", output_sizes=[[2], [2]], output_dtypes=["Double"]),
        entry(2, "scatter", input_sizes=[[2], [2]]),
        entry(3, "all_to_all", input_sizes=[[5]]),
    )
    other = calls(
        entry(1, "gather", output_sizes=[], output_dtypes=[]),
        entry(2, "scatter", input_sizes=[], input_dtypes=[]),
        entry(3, "all_to_all", input_sizes=[[1]]),
        entry(1, "all_reduce", process_group=["1", "undefined"], pg_id=1),
        entry(0, "send", is_p2p=True),
    )
    assert find_parting({0: root, 1: other}) is None


def test_only_calls_that_every_rank_remembers_and_of_its_last_group_are_compared() -> None:
    latest = [entry(number, "all_reduce", pg_id=1) for number in range(4, 7)]
    before = entry(4, "all_gather")  # in a group that the rank has left
    assert find_parting({0: calls(before, *latest), 1: calls(*latest[1:])}) is None
    parting = find_parting({0: calls(before, *latest), 1: calls(latest[1])})
    assert parting is not None and "#6" in parting.sentence
    assert read_calls({"entries": latest}, since_ns=6) == calls(latest[2])


def test_numbers_that_are_far_apart_take_no_longer() -> None:
    far = [SUM, entry(10**15, "all_reduce")]
    assert find_parting({0: calls(*far), 1: calls(*far)}) is None


def test_the_last_call_is_named_where_the_record_of_a_lost_rank_is_not_known() -> None:
    def told(*statuses: RankStatus) -> list[tuple[str, ...]]:
        seen = PostMortem("rank 0 was lost", [RankStatus(0), *statuses])
        return facts(seen.text_of_calls.partition(": ")[2])

    waiting = RankStatus(1, calls=calls(SUM, WAITING))
    parted = [("1", "called", "all_reduce #1", TWO), ("2", "no call")]
    assert told(waiting, RankStatus(2, calls=[])) == parted
    assert told(waiting) == [("1", "called", "all_gather #2", TWO)]
    no_calls = [RankStatus(0), RankStatus(1, calls=[])]
    assert PostMortem("no calls", no_calls).text_of_calls == ""
