"""The matrix of an audit: its small cases by the number of samples, batch size and world size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from disteval.audit.findings import judge
from disteval.judging.report import Finding, Verdict

Case = dict[str, Any]

OUTCOMES = {"right": "passed", "wrong": "failed", "skipped": "unsupported", "out of time": "error"}
"""The outcome of a rule whose sign stands for that of a case."""

_MOST_COLUMNS = 60
_DRAWN_ALIKE = 2  # the most larger cases that happen to have one world size and batch size


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


def verdict_of(run: dict[str, Any]) -> Verdict:
    """Return the verdict of what the report of an audit has, whatever else it says."""
    outcomes = (case["outcome"] for case in run["cases"])
    return judge(outcomes, bool(run["findings"]), run["reason"], run["assumes"], run["seconds"])


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


def findings_of(run: dict[str, Any]) -> list[tuple[Finding, dict[str, Any]]]:
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
