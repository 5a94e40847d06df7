"""A call that takes too long is ended, and a shorter one is not."""

from __future__ import annotations

import threading

from disteval_backends._deadline import Deadline


def test_a_body_that_takes_too_long_is_ended_once() -> None:
    ended: list[int] = []
    came = threading.Event()

    def end() -> None:
        ended.append(1)
        came.set()

    deadline = Deadline(0.2, end)
    for _ in range(3):
        with deadline:
            pass
    assert not came.wait(0.5)
    with deadline:
        assert came.wait(5)
    assert ended == [1]


def test_the_thread_ends_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    deadline = Deadline(1e12, lambda: None)
    [thread] = set(threading.enumerate()) - before
    deadline.close()
    thread.join(30)
    assert not thread.is_alive()
