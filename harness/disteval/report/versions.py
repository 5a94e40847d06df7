"""The conformance of a backend over time: rules by version, and what changed between versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from disteval.report.model import SIGNS, Cell, Column, Row
from disteval.report.verdict import name_rules, name_sizes

_WORST_FIRST = ("failed", "error", "passed", "unsupported")
_NOT_TRIED = "not tried"


class State(NamedTuple):
    """The outcome of a rule in one check; empty if it was not tried.

    ``where`` names the world sizes if the rule was failed or not judged.
    """

    outcome: str
    where: str

    @property
    def word(self) -> str:
        """The word for the outcome, as the page's signs have it."""
        return SIGNS[self.outcome].word if self.outcome else _NOT_TRIED


class History(NamedTuple):
    """The checks of one backend, the newest first.

    Attributes:
        target: The backend, as it was named.
        columns: Its checks.
        rows: Each rule, with its state in each check.
        changes: For each check, what is different from the one before it, in words.
    """

    target: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Row, Sequence[State]]]
    changes: Sequence[tuple[Column, Sequence[str]]]


def make_histories(columns: Sequence[Column], rows: Sequence[Row]) -> list[History]:
    """Return the history of each backend of which there are several checks."""
    found = []
    for target, group in groupby(columns, lambda column: str(column.run["target"])):
        mine = list(group)
        if len(mine) < 2:
            continue
        states = [(row, _states(row.cells, mine)) for row in rows]
        tried = [(row, line) for row, line in states if any(state.outcome for state in line)]
        changes = [
            (newer, _changes(newer, older, [(row.id, line[i], line[i + 1]) for row, line in tried]))
            for i, (newer, older) in enumerate(pairwise(mine))
        ]
        found.append(History(target, mine, tried, changes))
    return found


def _states(cells: Iterable[Cell], columns: Iterable[Column]) -> list[State]:
    """Return the worst outcome of a rule in each check, over its world sizes."""
    found: dict[int, dict[str, list[int]]] = {column.index: {} for column in columns}
    for cell in cells:
        if cell.result is not None and cell.column.index in found:
            sizes = found[cell.column.index]
            sizes.setdefault(cell.result["outcome"], []).append(cell.size)
    return [_worst(sizes) for sizes in found.values()]


def _worst(sizes: Mapping[str, Sequence[int]]) -> State:
    worst = next((outcome for outcome in _WORST_FIRST if outcome in sizes), "")
    bad = worst in ("failed", "error")
    return State(worst, f"W={', '.join(map(str, sizes[worst]))}" if bad else "")


def _changes(newer: Column, older: Column, pairs: Iterable[tuple[str, State, State]]) -> list[str]:
    """Describe what is different between two checks, rules of one change together."""
    changed: dict[tuple[str, str], list[str]] = {}
    for id_, now, before in pairs:
        if now != before:
            changed.setdefault((_told(before), _told(now)), []).append(id_)
    found = [f"{name_rules(ids)}: {then}, now {now}" for (then, now), ids in changed.items()]
    if newer.sizes != older.sizes and newer.sizes and older.sizes:
        found.append(f"tried at {name_sizes(newer.sizes)}, before at {name_sizes(older.sizes)}")
    if newer.run["version"] != older.run["version"]:
        found.append(f"judged by disteval {newer.run['version']}, before by {older.run['version']}")
    return found


def _told(state: State) -> str:
    return f"{state.word} at {state.where}" if state.where else state.word
