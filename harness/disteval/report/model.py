"""The tables of a page: of checks, with failures, lost ranks and reasons, and of audits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from disteval.audit.findings import judge as judge_audit
from disteval.conformance.verdict import Reason, finding_of, findings_of, judge, order, reasons_of
from disteval.judging.report import Finding, Verdict
from disteval.report.files import check_table

Case = dict[str, Any]

OUTCOMES = {"right": "passed", "wrong": "failed", "skipped": "unsupported", "out of time": "error"}
"""The outcome of a rule whose sign stands for that of a case."""

_MOST_COLUMNS = 60
_DRAWN_ALIKE = 2  # the most larger cases that happen to have one world size and batch size
_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")

Run = dict[str, Any]
"""A file of ``disteval check --json``, as `disteval.report.files.read_run` returns it."""

Result = dict[str, Any]
"""One entry of its ``rules``."""


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


class RuleRow(NamedTuple):
    """One rule in all checks, a row of the matrix."""

    id: str
    name: str
    sentence: str
    level: str
    cells: list[Cell]


def make_columns(runs: Sequence[tuple[str, Run]]) -> list[Column]:
    """Make a column for each check, from the name and the report of each file.

    The checks of one backend stand side by side, the newest version first.

    Raises:
        UsageError: The table would be too large.
    """
    rules = len({result["id"] for _, run in runs for result in run["rules"]})
    wide = sum(len({result["world_size"] for result in run["rules"]}) for _, run in runs)
    check_table(rules, wide)
    targets: dict[str, list[tuple[str, Run]]] = {}
    for name, run in runs:
        targets.setdefault(run["target"], []).append((name, run))
    columns: list[Column] = []
    for label, run in (one for same in targets.values() for one in _newest_first(same)):
        sizes = sorted({result["world_size"] for result in run["rules"]})
        counts = Counter(result["outcome"] for result in run["rules"])
        verdict = judge(run["rules"], run.get("contract", {}), run.get("single_rank", ""))
        columns.append(Column(len(columns), label, run, sizes, counts, verdict))
    return columns


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


def make_rows(columns: Sequence[Column]) -> list[RuleRow]:
    """Make a row for each rule that any check tried, in the order of the rules' numbers."""
    found = {
        (column.index, result["id"], result["world_size"]): result
        for column in columns
        for result in column.run["rules"]
    }
    rules = {result["id"]: result for result in reversed(found.values())}
    rows = []
    for i, id_ in enumerate(sorted(rules, key=order)):
        cells = [
            Cell(column, i, size, found.get((column.index, id_, size)))
            for column in columns
            for size in column.sizes
        ]
        rule = rules[id_]
        rows.append(RuleRow(id_, rule["name"], rule["sentence"], rule["level"], cells))
    return rows


def failures(columns: Iterable[Column], rows: Sequence[RuleRow]) -> list[Finding]:
    """Return every failure, by check, rule and world size; those of one mistake are one finding."""
    cells = {id(cell.result): cell for row in rows for cell in row.cells if cell.result}

    def told(result: Result) -> Finding:
        cell = cells[id(result)]
        return replace(finding_of(result), target=cell.column.label, anchor=cell.anchor)

    return [found for column in columns for found in findings_of(column.run["rules"], told)]


def faults(rows: Iterable[RuleRow]) -> list[Cell]:
    """Return every result of losing a rank (rule 7), by check, rule and world size."""
    of_loss = [row for row in rows if row.id.startswith("7.")]
    found = [c for row in of_loss for c in row.cells if c.result and c.result["examples"]]
    return sorted(found, key=lambda cell: cell.column.index)


def reasons(columns: Iterable[Column]) -> list[tuple[Column, Reason]]:
    """Return the reasons why backends were not judged by some rules, each reason once."""
    return [(column, reason) for column in columns for reason in reasons_of(column.run["rules"])]


class CaseTable(NamedTuple):
    """The matrix of one audit.

    Attributes:
        columns: The pairs of world size and batch size.
        rows: Each number of samples, with the outcome of each column's case; None if there is none.
        others: The cases that are not in it, because they are larger or read otherwise.
    """

    columns: Sequence[tuple[int, int]]
    rows: Sequence[tuple[int, Sequence[str | None]]]
    others: Sequence[Case]


def audit_verdict(run: dict[str, Any]) -> Verdict:
    """Return the verdict of what the report of an audit has, whatever else it says."""
    outcomes = (case["outcome"] for case in run["cases"])
    return judge_audit(
        outcomes, bool(run["findings"]), run["reason"], run["assumes"], run["seconds"]
    )


def matrix_of(run: dict[str, Any]) -> CaseTable:
    """Return the matrix of the report of an audit."""
    otherwise = ("num_workers", "shuffle", "ids", "damage")
    plain = [case for case in run["cases"] if not any(case[name] for name in otherwise)]
    pairs = [(case["world_size"], case["batch_size"]) for case in plain]
    counts = Counter(pairs)
    columns = sorted(pair for pair in counts if counts[pair] > _DRAWN_ALIKE)[:_MOST_COLUMNS]
    outcomes = {
        (case["size"], pair): OUTCOMES[case["outcome"]]
        for case, pair in zip(plain, pairs, strict=True)
        if pair in columns
    }
    sizes = sorted({size for size, _ in outcomes})
    rows = [(size, [outcomes.get((size, pair)) for pair in columns]) for size in sizes]
    shown = {id(case) for case, pair in zip(plain, pairs, strict=True) if pair in columns}
    return CaseTable(columns, rows, [case for case in run["cases"] if id(case) not in shown])


def audit_findings(run: dict[str, Any]) -> list[tuple[Finding, dict[str, Any]]]:
    """Return each finding of the report of an audit, with its part of the report."""
    return [
        (
            Finding(
                f"{found['kind']} {found['name']}".strip(), found["case"], found["sentence"],
                message=found["message"], evidence=found["evidence"], replay=found["replay"],
            ),
            found,
        )
        for found in run["findings"]
    ]  # fmt: skip
