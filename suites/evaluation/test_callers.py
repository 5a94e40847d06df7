"""The forked child of rule 5.6 ends, also when nobody is left to end it."""

import os
import select
import signal
import time
from typing import Any

from disteval_backends.non_dist import NonDist

from suites.helpers.faults import fork_a_child


class Hangs(NonDist):
    """Waits in each collective for far too long, and says when it begins to."""

    def __init__(self, writable: int) -> None:
        self.writable = writable

    def all_gather_object(self, obj: Any) -> Any:
        os.write(self.writable, b"x")
        time.sleep(120)


class Ends(NonDist):
    """Gathers, and leaves no status of a child to wait for."""

    def all_gather_object(self, obj: Any) -> Any:
        return [obj]


def test_a_child_whose_end_is_not_told_convicts_nobody() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert fork_a_child(Ends(), 60.0) == ""
        assert "still waited" in fork_a_child(Hangs(os.open(os.devnull, os.O_WRONLY)), 0.1)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_child_ends_by_itself_when_its_rank_is_killed() -> None:
    readable, writable = os.pipe()
    rank = os.fork()
    if rank == 0:
        try:
            fork_a_child(Hangs(writable), 1.0)
        finally:
            os._exit(0)
    os.close(writable)
    assert os.read(readable, 1) == b"x"
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    # The pipe ends with the last process that has it.
    assert select.select([readable], [], [], 60)[0]
    assert os.read(readable, 1) == b""
    os.close(readable)
