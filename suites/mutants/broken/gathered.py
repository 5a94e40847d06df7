"""Backends whose all-gather returns the wrong list."""

from __future__ import annotations

import copy
import random
from typing import Any

from suites.mutants.broken.base import Gathered, Mutant, add


class ReversedOrder(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[::-1]


class OwnObjectTwice(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        gathered[(self.rank + 1) % len(gathered)] = copy.deepcopy(gathered[self.rank])
        return gathered


class SwappedAtRandom(Gathered):
    """Returns two entries in the wrong order in one of ten calls."""

    breaks = "2.1"
    chance = random.SystemRandom()  # Hypothesis watches the other ones

    def change(self, gathered: list[Any]) -> Any:
        return gathered[::-1] if self.chance.random() < 0.1 else gathered


def sorted_as_text(items: list[Any]) -> list[Any]:
    """Return what ranks have sent in the order of their numbers as text: 0, 1, 10, 11, 2."""
    return [items[rank] for rank in sorted(range(len(items)), key=str)]


add(
    globals(), Gathered, "2.1",
    LastRankDropped=lambda self, gathered: gathered[:-1],
    RotatedByRank=lambda self, gathered: gathered[self.rank :] + gathered[: self.rank],
    OnlyRank0Gathers=lambda self, gathered: [None] * len(gathered) if self.rank else gathered,
    ReturnsTuple=lambda self, gathered: tuple(gathered),
    OneTooMany=lambda self, gathered: [*gathered, None],
    WrongOnlyForFour=lambda self, gathered: gathered[:: -1 if len(gathered) == 4 else 1],
    RanksSortedAsText=lambda self, gathered: sorted_as_text(gathered),
    WrongOnlyForFive=lambda self, gathered: gathered[:: -1 if len(gathered) == 5 else 1],
    WrongOnlyOnLastRank=lambda self, gathered: (
        gathered[::-1] if self.rank == len(gathered) - 1 else gathered
    ),
    NestedInAList=lambda self, gathered: [[item] for item in gathered],
    LeavesItselfOut=lambda self, gathered: gathered[: self.rank] + gathered[self.rank + 1 :],
)  # fmt: skip


class PaddedToTheLargest(Gathered):
    breaks = "2.3"

    def change(self, gathered: list[Any]) -> Any:
        longest = max((len(item) for item in gathered if type(item) is bytes), default=0)
        return [item.ljust(longest, b"\0") if type(item) is bytes else item for item in gathered]


def cut(gathered: list[Any], like: Any) -> list[Any]:
    """Return all bytes as they are in buffers of one object's length."""
    if type(like) is not bytes:
        return gathered
    return [item[: len(like)] if type(item) is bytes else item for item in gathered]


add(
    globals(), Gathered, "2.3", "that of rank 0",
    SizesOfRank0=lambda self, gathered: cut(gathered, gathered[0]),
)  # fmt: skip
add(
    globals(), Gathered, "2.3", "the rank's own",
    SizesOfItsOwn=lambda self, gathered: cut(gathered, gathered[self.rank]),
)  # fmt: skip


class LosesTheLastOfLongLists(Gathered):
    """Loses an entry of what a metric with entries sends: a list, at the end of a tuple."""

    breaks = "8.1"

    def change(self, gathered: list[Any]) -> Any:
        if type(gathered[-1]) is list:
            gathered[-1] = [self.shorten(item) for item in gathered[-1]]
        return gathered

    def shorten(self, item: Any) -> Any:
        if type(item) is not tuple or not item:
            return item[:-1] if type(item) is list and len(item) > 3 else item
        return (*item[:-1], self.shorten(item[-1]))


class NotWritten(Mutant):
    """Has collectives that somebody has yet to write."""

    breaks = "2.1"

    def all_gather_object(self, obj: Any) -> Any:
        raise NotImplementedError

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.all_gather_object(obj)[src]
