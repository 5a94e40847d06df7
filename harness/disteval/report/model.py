"""The tables of a page about checks: the matrix of rules, failures, lost ranks and reasons."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from disteval.errors import UsageError
from disteval.report.verdict import Verdict, judge, order

_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")

Run = dict[str, Any]
"""A file of ``disteval check --json``, as `disteval.report.files.read_run` returns it."""

Result = dict[str, Any]
"""One entry of its ``rules``."""


class Sign(NamedTuple):
    """The sign of an outcome, which is never shown by a colour alone."""

    glyph: str
    word: str


SIGNS = {
    "passed": Sign("✓", "pass"),
    "failed": Sign("✗", "FAIL"),
    "unsupported": Sign("–", "n/a"),
    "error": Sign("?", "error"),
}

VERDICTS = {"conformant": "passed", "broken": "failed", "incomplete": "error"}
"""The outcome whose sign stands for a verdict."""

_MAX_CELLS = 100_000


@dataclass(frozen=True)
class Column:
    """One check, a column of the matrix.

    The label is the backend's name, with its version or the file's name if two checks are of one
    backend; the counts are the numbers of results with each outcome. The verdict is that of the
    results in the file, whatever else it says.
    """

    index: int
    label: str
    run: Run
    sizes: list[int]
    counts: Counter[str]
    verdict: Verdict

    @property
    def version(self) -> str:
        """The version of the distribution that provides the backend; empty if there is none."""
        return str(self.run.get("target_version", ""))

    @property
    def examples(self) -> int:
        """The number of examples that were tried."""
        return sum(result["examples"] for result in self.run["rules"])

    @property
    def seconds(self) -> float:
        """The time that the rules took."""
        return math.fsum(result["seconds"] for result in self.run["rules"])


class Cell(NamedTuple):
    """A result and its check; ``result`` is None if the rule was not tried."""

    column: Column
    row: int
    size: int
    result: Result | None

    @property
    def anchor(self) -> str:
        """The name of the link to the failure."""
        return f"failure-{self.column.index}-{self.row}-{self.size}"


class Failure(NamedTuple):
    """A failure that is shown in full, and those that have the same likely cause."""

    cell: Cell
    alike: list[Cell]

    @property
    def cells(self) -> list[Cell]:
        """The failure and those that have the same likely cause."""
        return [self.cell, *self.alike]


class Row(NamedTuple):
    """One rule in all checks, a row of the matrix."""

    id: str
    name: str
    sentence: str
    level: str
    cells: list[Cell]


class Reason(NamedTuple):
    """The reason why a backend was not judged by some rules."""

    column: Column
    outcome: str
    text: str
    where: list[str]


def make_columns(runs: Sequence[tuple[str, Run]]) -> list[Column]:
    """Make a column for each check, from the name and the report of each file.

    The checks of one backend stand side by side, the newest version first.
    """
    targets: dict[str, list[tuple[str, Run]]] = {}
    for name, run in runs:
        targets.setdefault(run["target"], []).append((name, run))
    labelled = [one for same in targets.values() for one in _newest_first(same)]
    return [
        Column(
            i,
            label,
            run,
            sorted({result["world_size"] for result in run["rules"]}),
            Counter(result["outcome"] for result in run["rules"]),
            judge(run["rules"], run.get("contract", {}), run.get("single_rank", "")),
        )
        for i, (label, run) in enumerate(labelled)
    ]


def _newest_first(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
    """Sort the checks of one backend, and label them by version, or else by file.

    They are sorted by version and date, or by date alone if a version is not numbers and dots.
    """
    versions = {run.get("target_version", "") for _, run in runs}
    by_version = "" not in versions and len(versions) == len(runs)
    comparable = all(map(_RELEASE.fullmatch, versions))

    def age(one: tuple[str, Run]) -> tuple[list[int], str]:
        numbers = one[1]["target_version"].split(".") if comparable else []
        return [*map(int, numbers)], one[1]["created"]

    found = []
    for name, run in sorted(runs, key=age, reverse=True):
        told = f" {run['target_version']}" if by_version else f" ({name})"
        found.append((run["target"] + (told if len(runs) > 1 else ""), run))
    return found


def make_rows(columns: Sequence[Column]) -> list[Row]:
    """Make a row for each rule that any check tried, in the order of the rules' numbers.

    Raises:
        UsageError: The table would be too large.
    """
    found = {
        (column.index, result["id"], result["world_size"]): result
        for column in columns
        for result in column.run["rules"]
    }
    rules = {result["id"]: result for result in reversed(found.values())}
    wide = sum(len(column.sizes) for column in columns)
    if len(rules) * wide > _MAX_CELLS:
        raise UsageError(
            f"the checks have {len(rules)} rules and {wide} world sizes, and a page shows at most "
            f"{_MAX_CELLS} results of checks; give fewer reports"
        )
    rows = []
    for i, id_ in enumerate(sorted(rules, key=order)):
        cells = [
            Cell(column, i, size, found.get((column.index, id_, size)))
            for column in columns
            for size in column.sizes
        ]
        rule = rules[id_]
        rows.append(Row(id_, rule["name"], rule["sentence"], rule["level"], cells))
    return rows


def failures(rows: Iterable[Row]) -> list[Failure]:
    """Return every failure, by check, rule and world size; one likely cause is one failure."""
    found: dict[tuple[int, str], Failure] = {}
    for cell in _cells(rows, lambda row, result: result["outcome"] == "failed"):
        key = cell.column.index, cause_of(cell) or cell.anchor
        if key in found:
            found[key].alike.append(cell)
        else:
            found[key] = Failure(cell, [])
    return list(found.values())


def cause_of(cell: Cell) -> str:
    """Return the likely cause of a failure; older files name none."""
    return str(cell.result.get("cause", "")) if cell.result else ""


def rules_of(cells: Iterable[Cell]) -> str:
    """Return the rules and world sizes of results in a few words."""
    sizes: dict[str, list[int]] = {}
    for cell in cells:
        if cell.result is not None:
            sizes.setdefault(cell.result["id"], []).append(cell.size)
    told = (f"{number} (W={', '.join(map(str, found))})" for number, found in sizes.items())
    return ", ".join(told)


def faults(rows: Iterable[Row]) -> list[Cell]:
    """Return every result of losing a rank (rule 7), by check, rule and world size."""
    return _cells(rows, lambda row, result: row.id.startswith("7.") and result["examples"])


def _cells(rows: Iterable[Row], chosen: Callable[[Row, Result], bool]) -> list[Cell]:
    found = [c for row in rows for c in row.cells if c.result and chosen(row, c.result)]
    return sorted(found, key=lambda cell: cell.column.index)


def reasons(columns: Iterable[Column]) -> list[Reason]:
    """Return the reasons why backends were not judged by some rules, each reason once."""
    found = []
    for column in columns:
        untold: dict[tuple[str, str], dict[str, list[int]]] = {}
        for result in column.run["rules"]:
            if result["outcome"] in ("unsupported", "error"):
                again = f"; again: {result['replay']}" if result["replay"] else ""
                sizes = untold.setdefault((result["outcome"], result["message"] + again), {})
                sizes.setdefault(result["id"], []).append(result["world_size"])
        for (outcome, text), rules in untold.items():
            where: dict[str, list[str]] = {}
            for id_, sizes_of_rule in rules.items():
                where.setdefault(", ".join(f"W={size}" for size in sizes_of_rule), []).append(id_)
            told = [f"{', '.join(ids)} at {sizes}" for sizes, ids in where.items()]
            found.append(Reason(column, outcome, text, told))
    return found
