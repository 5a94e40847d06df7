"""What a page shows of checks: columns and rows of the matrix, failures, faults and reasons."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Run = dict[str, Any]
"""A file of ``disteval check --json``, as `disteval.report.files` lets it through."""

Result = dict[str, Any]
"""One of its ``rules``."""


class Sign(NamedTuple):
    """How an outcome is shown: never by a colour alone."""

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

_EVIDENCE = re.compile(
    r"^((?:traceback|stack|end of the output) of ranks? [\d, ]+|end of the launcher's output):\n"
    r"((?:  .*\n?)+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Column:
    """One check.

    Attributes:
        index: Its place among the checks.
        label: The backend, and where two checks are of one, which of them.
        run: What the file says.
        sizes: Its world sizes.
        counts: How many results there are of each outcome.
    """

    index: int
    label: str
    run: Run
    sizes: list[int]
    counts: Counter[str]

    @property
    def examples(self) -> int:
        """How many were tried."""
        return sum(result["examples"] for result in self.run["rules"])

    @property
    def seconds(self) -> float:
        """How long the rules took."""
        return math.fsum(result["seconds"] for result in self.run["rules"])


class Cell(NamedTuple):
    """A result and its check; ``result`` is None where the rule was not tried."""

    column: Column
    row: int
    size: int
    result: Result | None

    @property
    def anchor(self) -> str:
        """What links to the failure."""
        return f"failure-{self.column.index}-{self.row}-{self.size}"


class Row(NamedTuple):
    """One rule in all checks."""

    id: str
    name: str
    sentence: str
    level: str
    cells: list[Cell]


class Reason(NamedTuple):
    """Why rules were not held against a backend."""

    column: Column
    outcome: str
    text: str
    where: list[str]


def make_columns(runs: Sequence[tuple[str, Run]]) -> list[Column]:
    """Make a column of each check.

    Args:
        runs: The name of each file, and what it says.
    """
    targets = Counter(run["target"] for _, run in runs)
    return [
        Column(
            i,
            f"{run['target']} ({name})" if targets[run["target"]] > 1 else run["target"],
            run,
            sorted({result["world_size"] for result in run["rules"]}),
            Counter(result["outcome"] for result in run["rules"]),
        )
        for i, (name, run) in enumerate(runs)
    ]


def make_rows(columns: Sequence[Column]) -> list[Row]:
    """Make a row of each rule that any of the checks tried, in the contract's order."""
    found = {
        (column.index, result["id"], result["world_size"]): result
        for column in columns
        for result in column.run["rules"]
    }
    rules = {result["id"]: result for result in reversed(found.values())}
    rows = []
    for i, id_ in enumerate(sorted(rules, key=_order)):
        cells = [
            Cell(column, i, size, found.get((column.index, id_, size)))
            for column in columns
            for size in column.sizes
        ]
        rule = rules[id_]
        rows.append(Row(id_, rule["name"], rule["sentence"], rule["level"], cells))
    return rows


def _order(number: str) -> list[tuple[int, str]]:
    """Rule 10.1 after rule 9.1; whatever else a file calls a rule, somewhere."""
    return [(int(part) if part.isdecimal() else 0, part) for part in number.split(".")]


def failures(rows: Iterable[Row]) -> list[Cell]:
    """Every failure, by check, rule and world size."""
    found = [c for row in rows for c in row.cells if c.result and c.result["outcome"] == "failed"]
    return sorted(found, key=lambda cell: cell.column.index)


def faults(rows: Iterable[Row]) -> list[Cell]:
    """Every loss of a rank that was tried (rule 7), by check, rule and world size."""
    found = [
        cell
        for row in rows
        for cell in row.cells
        if row.id.startswith("7.") and cell.result and cell.result["examples"]
    ]
    return sorted(found, key=lambda cell: cell.column.index)


def reasons(columns: Iterable[Column]) -> list[Reason]:
    """Why rules were not held against each backend: each reason once."""
    found = []
    for column in columns:
        untold: dict[tuple[str, str], dict[str, list[int]]] = {}
        for result in column.run["rules"]:
            if result["outcome"] in ("unsupported", "error"):
                sizes = untold.setdefault((result["outcome"], result["message"]), {})
                sizes.setdefault(result["id"], []).append(result["world_size"])
        for (outcome, text), rules in untold.items():
            where: dict[str, list[str]] = {}
            for id_, sizes_of_rule in rules.items():
                where.setdefault(", ".join(f"W={size}" for size in sizes_of_rule), []).append(id_)
            told = [f"{', '.join(ids)} at {sizes}" for sizes, ids in where.items()]
            found.append(Reason(column, outcome, text, told))
    return found


def evidence(message: str) -> tuple[str, list[tuple[str, str]]]:
    """Split what a lost world left into its story, and each rank's stacks, traceback and output.

    Returns:
        The message without them, and the title and text of each; a message of another kind whole.
    """
    parts = [(title, re.sub("^  ", "", text, flags=re.M).rstrip("\n"))
             for title, text in _EVIDENCE.findall(message)]  # fmt: skip
    return _EVIDENCE.sub("", message).rstrip("\n"), parts
