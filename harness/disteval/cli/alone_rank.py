"""The backend that a task is given where ranks are in no group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError

NO_BACKEND = "none"
"""The name of the backend in the report of an evaluation that needs none."""


@dataclass(frozen=True)
class LeaseGroup:
    """The ranks that evaluate a lease together, with a model that spans them.

    Attributes:
        number: The number of the group.
        rank: The number of this rank in the group, from 0 up.
        size: The number of ranks of the group.
        path: A private folder, empty at first, where the ranks of the group can meet; they are on
            one host.
    """

    number: int
    rank: int
    size: int
    path: Path


class AloneRank(BaseDistBackend):
    """The backend of a rank that is in no group of a backend: it has a number, and no collective.

    Attributes:
        group: The ranks that evaluate a lease together.
    """

    def __init__(self, rank: int, world_size: int, group: LeaseGroup) -> None:
        self._rank, self._world_size = rank, world_size
        self.group = group

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
