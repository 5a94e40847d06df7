"""Ranks that are killed at random moments cost time, and change no result."""

import json
import sys
from pathlib import Path
from typing import Any

from disteval.leases import Borrower, Lender
from disteval.world.channel.messages import Ask, Finished, Hello, Join, Joined, Lend

from suites.helpers.processes import (
    left_over,
    processes_below,
    run_plainly,
    start_as_from_a_terminal,
)


def tried(what: str, seeds: int, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "suites.helpers.lost_ranks", what, str(seeds)]
    done = run_plainly(command, folder, 300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lost_ranks_change_no_result(tmp_path: Path) -> None:
    found = tried("ranks", 12, tmp_path)
    assert len(found) == 12
    for each in found:
        assert each["ended"] and each["right"], each
        assert each["done"] == 50
        # A rank that was stopped, and went on after all others had left, finds no lender.
        assert all(text.startswith("WorldError") for text in each["other"]), each
    assert any(each["lost"] or each["failed"] for each in found)


def test_a_rank_whose_leader_is_stopped_says_so_in_bounded_time(tmp_path: Path) -> None:
    [found] = tried("stop", 1, tmp_path)
    [said] = found["other"]
    assert said.startswith("WorldError") and "10 s" in said and "stopped" in said
    assert found["seconds"] < 30


class Scripted:
    """A connection over which these messages come, and no other."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages]

    def get(self, timeout: float) -> Any:
        return self.messages.pop(0)

    def send(self, message: Any) -> None:
        pass


def test_a_rank_that_was_frozen_with_the_result_takes_that_of_another_rank() -> None:
    """The end, which comes once, is there before the answer to what it asks for."""
    report: Any = None
    end = Finished(b"", None, report)
    link: Any = Scripted(Joined(0, 60.0, True, False, ()), Lend(3, 3, 3, 1), end)
    borrower = Borrower(link, {}, {}, 3)
    assert [*borrower] == []
    assert borrower.finish(lambda parts: parts) is end


def test_ranks_with_parts_of_a_model_go_on_in_whichever_order_they_join(tmp_path: Path) -> None:
    for ranks in ([1, 0], [0, 1]):
        lender = Lender(tmp_path, expected=2, ranks_per_lease=2)
        heard: list[tuple[int, Any]] = [(rank, Hello(rank, rank, 0)) for rank in ranks]
        heard += [(rank, Join({}, 3, {"the value of weights": f"{rank}"})) for rank in ranks]
        replies = lender.turn(heard, 0.0)
        lender.close()
        assert {rank for reply, [rank] in replies if isinstance(reply, Joined)} == {0, 1}, replies


def test_an_evaluation_ends_whose_only_group_has_lost_a_rank_before_it_took_part() -> None:
    lender = Lender(None, expected=2, ranks_per_lease=2)
    lender.turn([(0, Hello(0, 0, 0)), (1, Hello(1, 1, 0)), (0, Join({}, 3, {})), (0, Ask(3))], 0.0)
    lender.lose(1, "killed by SIGKILL", 0.0)
    lender.turn([], 0.1)
    assert b"rank 1: killed by SIGKILL" in ((lender.outcome and lender.outcome.error) or b"")


def test_a_second_process_with_the_number_of_a_rank_takes_its_place(tmp_path: Path) -> None:
    [found] = tried("twice", 1, tmp_path)
    [said] = found["other"]
    assert found["right"] and said.startswith("WorldError")


def test_a_rank_that_hangs_outside_python_ends_with_the_process_that_its_launcher_kills(
    tmp_path: Path,
) -> None:
    code = """
import ctypes, sys
from pathlib import Path
from disteval.world.attached import go_on_in_child
go_on_in_child(Path(sys.argv[1]), 0)
print(flush=True)
ctypes.PyDLL(None).pause()  # no other thread of Python runs meanwhile
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with start_as_from_a_terminal(command) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "\n"
        rank = processes_below(started.pid)
        started.kill()
    assert len(rank) == 1
    assert left_over(rank) == []
