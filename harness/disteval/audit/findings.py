"""The findings of an audit, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from disteval.audit.case import Settings
from disteval.judging.report import BaseReport, Finding, Verdict, header

Kind = Literal[
    "counted twice",
    "dropped",
    "not in the data set",
    "weighted wrongly",
    "outputs in another order",
    "outputs of other samples",
    "ranks disagree",
    "differs from call to call",
    "differs from one rank",
    "counted alone",
    "part lost",
    "part repeated",
    "part truncated",
    "hangs",
    "crashes",
]

_TOLD = ("name", "sentence", "replay", "weights", "fair", "message", "evidence")

DEFAULT_TIMEOUT = 20.0
"""Seconds that one call may take by default."""


@dataclass(frozen=True, kw_only=True)
class LoopFinding(Finding):
    """One way in which a function is wrong, with the smallest case that shows it.

    Attributes:
        name: The name of the result that shows it; empty for a hang or a crash.
        settings: The case.
        weights: The weight of each sample, where probes have measured it.
        fair: The weight that each sample should have.
    """

    name: str
    settings: Settings
    weights: Sequence[float] = ()
    fair: Sequence[float] = ()

    @property
    def kind(self) -> str:
        """What is wrong, see `Kind`."""
        return self.title

    def __str__(self) -> str:
        return f"{self.title}: {self.sentence} ({self.settings})"


def judge(
    outcomes: Iterable[str], found: bool, reason: str, assumes: Sequence[str], seconds: float
) -> Verdict:
    """Return the verdict of an audit, from what its report has.

    It is ``wrong`` with a finding, and ``sound`` if every case was tried and is right.

    Args:
        outcomes: The outcome of each case.
        found: Whether there is a finding.
        reason: Why the function as a whole could not be judged; an empty text if it could.
        assumes: What the function assumes.
        seconds: The time of the audit.
    """
    counts = Counter(outcomes)
    whole = 0 < counts["right"] == counts.total() and not reason
    word = "wrong" if found else "sound" if whole else "not judged"
    tried = counts["right"] + counts["wrong"]
    wrong = f"{counts['wrong']} wrong" if counts["right"] or found else "and none judged"
    covers = f"is {word}: {tried} case{'s were' if tried != 1 else ' was'} tried, {wrong}"
    if counts["skipped"] and not reason:
        covers += f"; {counts['skipped']} skipped, because a smaller case would disturb them"
    if counts["out of time"]:
        covers += f"; {counts['out of time']} not tried within --seconds"
    if assumes:
        covers += f"; assumed: {', '.join(assumes)}"
    covers += f", in {seconds:.0f} s"
    return Verdict(word, covers, word, {"sound": 0, "wrong": 1, "not judged": 2}[word])


@dataclass
class AuditReport(BaseReport):
    """The report of an audit.

    Attributes:
        target: The function, as it was named.
        backend: The name of the backend.
        assumes: What the function assumes.
        findings: The first finding of each kind and name, in the order in which they were found.
        cases: The outcome of each case: ``right``, ``wrong``, ``skipped`` (a smaller case broke
            alike, or earlier calls disturb later ones), or ``out of time``.
        warnings: What is no error but worth knowing.
        reason: Why the function as a whole could not be judged; an empty text if it could.
        details: The tracebacks that belong to the reason.
        seconds: The time of the audit.
    """

    target: str
    backend: str
    assumes: tuple[str, ...] = ()
    findings: list[LoopFinding] = field(default_factory=list)
    cases: dict[Settings, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    reason: str = ""
    details: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of cases by outcome."""
        return Counter(self.cases.values())

    def out_of_time(self, seconds: float) -> str:
        """Say how many cases were not tried within so many seconds; nothing if all were."""
        late = self.counts["out of time"]
        told = (
            f"{late} of {len(self.cases)} cases could not be tried within {seconds:g} s; allow "
            f"more seconds, or try fewer world sizes"
        )
        return told if late else ""

    @property
    def judged(self) -> Verdict:
        """The verdict, see `judge`."""
        found = bool(self.findings)
        return judge(self.cases.values(), found, self.reason, self.assumes, self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            **header("audit"),
            **vars(self),
            "verdict": self.verdict,
            "cases": [asdict(s) | {"outcome": o} for s, o in self.cases.items()],
            "findings": [
                {name: getattr(f, name) for name in _TOLD} | {"kind": f.title, "case": f.where}
                for f in self.findings
            ],
        }
