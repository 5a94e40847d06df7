"""The report of a failed world says what a person needs, whatever state its ranks are in."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest
from disteval import WorldError
from disteval.worlds import World

from suites.helpers.processes import wait_for

# A hung rank costs this long; a rank that works must not be late on a busy machine.
SHORT = 4.0
SOCKETS = "suites.mutants.sockets:Sockets"  # real processes, and no library to import


CONTROLS = "\x1b]0;mine\x07\b\x9b2J\u202e\x7f"


def report_of(function: Any, *args: Any, backend: str = SOCKETS) -> str:
    with World(backend, 2) as world, pytest.raises(WorldError) as caught:
        world.run(function, *args * 2, timeout=SHORT)
    return str(caught.value)


def raise_at_length(backend: Any) -> None:
    raise LookupError("the label 11 is none\nlabels go from 0 to 9\nsee the manual")


def evaluate_nonsense(backend: Any) -> None:
    compile("1 +", "mine.py", "exec")


@pytest.mark.parametrize(
    ("function", "summary"),
    [
        (raise_at_length, "LookupError: the label 11 is none"),
        (evaluate_nonsense, "SyntaxError: invalid syntax"),
    ],
)
def test_an_exception_is_summed_up_by_how_its_message_begins(function: Any, summary: str) -> None:
    report = report_of(raise_on_0, function, backend="threads").splitlines()
    assert report[0].startswith(f"rank 0 raised {summary}; the order was to run raise_on_0")
    assert report[1] == f"  rank 0: raised {summary}"
    assert "in " + function.__name__ in "".join(report)


def raise_on_0(backend: Any, function: Any) -> None:
    if backend.rank == 0:
        function(backend)


def test_the_whole_message_is_in_the_traceback() -> None:
    report = report_of(raise_on_0, raise_at_length, backend="threads")
    assert "  see the manual" in report.splitlines()


@pytest.mark.parametrize("function", [raise_at_length, evaluate_nonsense])
def test_what_all_ranks_raise_alike_is_said_once(function: Any) -> None:
    report = report_of(function, backend="threads")
    whole = "LookupError: the label 11 is none\nlabels go from 0 to 9\nsee the manual"
    message = whole if function is raise_at_length else "SyntaxError: invalid syntax"
    headline = f"the order to run {function.__name__} failed on all 2 ranks: {message}"
    assert report.startswith(f"{headline}\ntraceback of all 2 ranks:\n")
    for line in message.splitlines():  # evidence is indented
        assert f"\n  {line}" not in report
    assert f"in {function.__name__}" in report


def test_what_the_only_rank_raises_is_said_once() -> None:
    with World("non_dist", 1) as world, pytest.raises(WorldError) as caught:
        world.run(raise_at_length)
    report = str(caught.value)
    assert report.startswith("the order to run raise_at_length failed on rank 0: LookupError: the")
    assert "\n  LookupError" not in report


def hang_deafly_on_0(backend: Any) -> None:
    if backend.rank == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pause()


def test_a_rank_that_does_not_answer_hides_no_other_rank() -> None:
    report = report_of(hang_deafly_on_0)
    deaf, _, heard = report.partition("stack of rank 0:")[2].partition("stack of rank 1:")
    assert "the rank wrote no stack: it is blocked outside of Python" in deaf
    assert "in hang_deafly_on_0" in heard


def print_much_and_hang(backend: Any) -> None:
    print("x" * (1 << 22))
    print("final line")
    signal.pause()


def test_of_much_output_the_end_is_shown() -> None:
    report = report_of(print_much_and_hang)
    assert report.endswith("final line")
    assert f"{'x' * 999} … (cut)" in report
    assert len(report) < 8000


def raise_a_long_line_on_0(backend: Any) -> None:
    if backend.rank == 0:
        raise ValueError("x" * 100_000)


def test_a_long_message_does_not_hide_the_order() -> None:
    headline, of_rank_0, *_ = report_of(raise_a_long_line_on_0, backend="threads").splitlines()
    assert headline.endswith("xxx … (cut); the order was to run raise_a_long_line_on_0")
    assert of_rank_0.endswith("xxx … (cut)")


def print_and_raise_controls(backend: Any) -> None:
    print(f"printed {CONTROLS}")
    raise ValueError(f"raised {CONTROLS}\non two lines")


def test_no_character_of_a_rank_commands_the_terminal() -> None:
    report = report_of(print_and_raise_controls)
    assert all(character.isprintable() or character == "\n" for character in report)
    shown = r"\x1b]0;mine\x07\x08\x9b2J\u202e\x7f"
    assert f"failed on all 2 ranks: ValueError: raised {shown}\non two lines\n" in report
    assert f"\n  printed {shown}" in report


def pid(backend: Any) -> int:
    return os.getpid()


def exit_thread_1(backend: Any) -> None:
    if backend.rank == 1:
        sys.exit(3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_called_a_thread() -> None:
    before = threading.active_count()
    report = report_of(exit_thread_1, backend="threads")
    assert report.startswith("rank 1 was lost (its thread ended)")
    assert wait_for(lambda: threading.active_count() <= before)  # pytest warns of how it ended
