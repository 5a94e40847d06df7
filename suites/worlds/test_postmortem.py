"""The report of a failed world says what a person needs, whatever state its ranks are in."""

import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

import pytest
from disteval import WorldError
from disteval.world import World

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
    [(raise_at_length, "label 11"), (evaluate_nonsense, "SyntaxError: invalid")],
)
def test_an_exception_is_summed_up_by_how_its_message_begins(function: Any, summary: str) -> None:
    report = report_of(raise_on_0, function, backend="threads")
    headline, of_rank_0, *rest = report.splitlines()
    assert headline.startswith("rank 0 ") and raise_on_0.__name__ in headline
    for line in headline, of_rank_0:
        assert summary in line and "manual" not in line
    assert f"in {function.__name__}" in report
    assert function is not raise_at_length or "  see the manual" in rest  # the traceback is whole


def raise_on_0(backend: Any, function: Any) -> None:
    if backend.rank == 0:
        function(backend)


@pytest.mark.parametrize(
    ("function", "message"),
    [(raise_at_length, "LookupError:"), (evaluate_nonsense, "SyntaxError:")],
)
@pytest.mark.parametrize("size", [1, 2])
def test_what_all_ranks_raise_alike_is_said_once(function: Any, message: str, size: int) -> None:
    with World("threads", size) as world, pytest.raises(WorldError) as caught:
        world.run(function)
    report = str(caught.value)
    assert (report.count(message), report.count(f"in {function.__name__}")) == (1, 1)
    assert {*caught.value.errors} == {*range(size)}


def hang_deafly_on_0(backend: Any) -> None:
    if backend.rank == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pause()


def test_a_rank_that_does_not_answer_hides_no_other_rank() -> None:
    where = f"in {hang_deafly_on_0.__name__}"
    deaf, heard = report_of(hang_deafly_on_0).split("stack of rank 0:")[1].split("stack of rank 1:")
    assert ("Python" in deaf, where in deaf, where in heard) == (True, False, True)


def end_or_wait(backend: Any, how: str) -> None:
    if how == "raises":
        raise KeyError(how)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    backend.all_gather_object(0)


def test_an_error_knows_of_each_rank_how_it_ended_and_where_it_is() -> None:
    with World(SOCKETS, 2) as world, pytest.raises(WorldError) as caught:
        world.run(end_or_wait, "waits", "raises")
    waits, other = caught.value.ranks
    assert (waits.rank, other.rank, waits.host) == (0, 1, socket.gethostname())
    assert (waits.position.inside, waits.position.name) == (True, "all_gather_object")
    assert end_or_wait.__name__ in [call.function for call in waits.frames]
    assert len(waits.stack) == 1  # the library's own threads are in nobody's way
    assert [call.function for call in other.frames] == [end_or_wait.__name__]
    assert other.raised == "KeyError: 'raises'"
    assert caught.value.post_mortem.waiting == [waits]
    with World(SOCKETS, 2) as world, pytest.raises(WorldError) as caught:
        world.run(end_or_wait, "waits", "is killed")
    assert [status.signal for status in caught.value.ranks] == ["", "SIGKILL"]
    assert caught.value.post_mortem.waiting == []  # a killed rank waits no more


def test_a_function_that_ranks_cannot_import_is_quoted_from_its_file() -> None:
    report = report_of(lambda backend: backend.rank / 0)
    assert __file__ in report and "backend.rank / 0)" in report


def print_and_raise_controls(backend: Any) -> None:
    print(f"printed {CONTROLS}")
    raise ValueError(f"raised {CONTROLS}\non two lines")


def test_no_character_of_a_rank_commands_the_terminal() -> None:
    report = report_of(print_and_raise_controls)
    assert all(character.isprintable() or character == "\n" for character in report)
    shown = r"\x1b]0;mine\x07\x08\x9b2J\u202e\x7f"
    assert f"raised {shown}\non two lines\n" in report
    assert f"\n  printed {shown}" in report


def exit_thread_1(backend: Any) -> None:
    if backend.rank == 1:
        sys.exit(3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_called_a_thread() -> None:
    before = threading.active_count()
    report = report_of(exit_thread_1, backend="threads")
    assert report.startswith("rank 1 ") and "thread" in report.splitlines()[0]
    assert wait_for(lambda: threading.active_count() <= before)  # pytest warns of how it ended


def print_lines(backend: Any) -> None:
    for number in range(3_000):
        print(f"line {number} {'x' * 1_000}")


def test_much_that_ranks_print_is_logged_whole_where_that_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "disteval.world.ranks"
    with caplog.at_level(logging.INFO, name), World(SOCKETS, 1) as world:
        world.run(print_lines)
    told = [record.message for record in caplog.records if record.name == name]
    assert told == [f"[rank 0] line {number} {'x' * 1_000}" for number in range(3_000)]
