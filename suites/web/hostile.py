"""A backend that is wrong about almost everything, and whose objects attack who prints them."""

from __future__ import annotations

import threading
from typing import Any

from disteval_backends.threads_dist import ThreadsDist

ATTACK = "</pre><script>ran = 1</script><img src=x onerror='ran = 1'>\u202e\x1b[31m"
SHOWN = ATTACK.replace("\u202e\x1b", r"\u202e\x1b")


class Attack:
    """Its ``repr`` is what runs where a page takes it for markup."""

    def __repr__(self) -> str:
        return ATTACK


class Hostile(ThreadsDist):
    """Gathers attacks, and broadcasts lists of what should be broadcast."""

    def all_gather_object(self, obj: Any) -> Any:
        return [Attack() for _ in super().all_gather_object(obj)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return [super().broadcast_object(obj, src)]


class Absent(ThreadsDist):
    """Rank 1 never comes to an all-gather."""

    def all_gather_object(self, obj: Any) -> Any:
        if self.rank == 1:
            threading.Event().wait(10)
        return super().all_gather_object(obj)
