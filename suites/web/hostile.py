"""A backend that breaks almost every rule, and whose objects attack the page that shows them."""

from __future__ import annotations

import threading
from typing import Any

from disteval_backends.threads_dist import ThreadsDist

ATTACK = "</pre><script>ran = 1</script><img src=x onerror='ran = 1'>\u202e\x1b[31m"
SHOWN = ATTACK.replace("\u202e\x1b", r"\u202e\x1b")


class Attack:
    """An object whose ``repr`` is a script that runs if a page takes it for markup."""

    def __repr__(self) -> str:
        return ATTACK


class Hostile(ThreadsDist):
    """A backend that gathers attacks, and broadcasts a list instead of the object."""

    def all_gather_object(self, obj: Any) -> Any:
        return [Attack() for _ in super().all_gather_object(obj)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return [super().broadcast_object(obj, src)]


class Absent(ThreadsDist):
    """A backend whose rank 1 never calls an all-gather."""

    def all_gather_object(self, obj: Any) -> Any:
        if self.rank == 1:
            threading.Event().wait(10)
        return super().all_gather_object(obj)
