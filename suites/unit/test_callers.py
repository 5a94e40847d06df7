"""The forked child of rule 5.6 ends, also when nobody is left to end it."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

from disteval.conformance.callers import _fork_a_child
from disteval_backends.non_dist import NonDist


class Hangs(NonDist):
    """Waits in each collective for far too long, and says when it begins to."""

    def __init__(self, writable: int) -> None:
        self.writable = writable

    def all_gather_object(self, obj: Any) -> Any:
        os.write(self.writable, b"x")
        time.sleep(120)


def test_a_child_ends_by_itself_when_its_rank_is_killed() -> None:
    readable, writable = os.pipe()
    rank = os.fork()
    if rank == 0:
        try:
            _fork_a_child(Hangs(writable), 1.0)
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
