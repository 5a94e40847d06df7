"""The backend that a task is given where ranks are in no group."""

from __future__ import annotations

from typing import Any, NoReturn

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError

NO_BACKEND = "none"
"""The name of the backend in the report of an evaluation that needs none."""


class AloneRank(BaseDistBackend):
    """The backend of a rank that is in no group: it has a number, and no collective."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size

    @property
    def is_initialized(self) -> bool:
        """True."""
        return True

    @property
    def rank(self) -> int:
        """The number of this rank, such as to choose a GPU."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks that were started together."""
        return self._world_size

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Refuse."""
        _refuse()

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Refuse."""
        _refuse()


def _refuse() -> NoReturn:
    raise UsageError(
        "with --elastic a rank is in no group, because the others may be lost at any time; leave "
        "the collectives out of the task, or leave --elastic out"
    )
