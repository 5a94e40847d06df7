"""A deadline for calls of a library that has none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Deadline:
    """A time limit for the body of a ``with``; one thread watches all bodies.

    Args:
        seconds: The time that a body may take.
        expired: The function to call when the time is over, in that thread; it must make the body
            raise.
    """

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._expired = expired
        self._until: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def __enter__(self) -> None:
        self._until = time.monotonic() + self._seconds

    def __exit__(self, *_: object) -> None:
        self._until = None

    def _watch(self) -> None:
        # A body that begins while this sleeps has its deadline after this wakes.
        left = self._seconds
        while not self._closed.wait(left):
            until = self._until
            left = self._seconds if until is None else until - time.monotonic()
            if left <= 0:
                self._expired()
                return
