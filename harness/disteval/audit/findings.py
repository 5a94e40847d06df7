"""The findings of an audit, and its report."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from disteval.audit.case import Settings
from disteval.report.files import header

Kind = Literal[
    "counted twice",
    "dropped",
    "weighted wrongly",
    "outputs in another order",
    "outputs of other samples",
    "ranks disagree",
    "differs from call to call",
    "differs from one rank",
    "counted alone",
    "hangs",
    "crashes",
]

DEFAULT_TIMEOUT = 20.0
"""Seconds that one call may take by default."""

_IMPORTABLE = re.compile(r"(?!__main__:)\w+(\.\w+)*:\w+")


@dataclass(frozen=True)
class Finding:
    """One way in which a function is wrong, with the smallest case that shows it.

    Attributes:
        kind: What is wrong.
        name: The name of the result that shows it; empty for a hang or a crash.
        sentence: What was found, what was expected and where the defect sits.
        settings: The case.
        replay: The command that tries this case alone, or the call in Python.
        weights: The weight of each sample, where probes have measured it.
        fair: The weight that each sample should have.
        details: Stacks and tracebacks of the ranks.
    """

    kind: Kind
    name: str
    sentence: str
    settings: Settings
    replay: str = ""
    weights: tuple[float, ...] = ()
    fair: tuple[float, ...] = ()
    details: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence} ({self.settings})"


@dataclass
class Report:
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
    findings: list[Finding] = field(default_factory=list)
    cases: dict[Settings, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    reason: str = ""
    details: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of cases by outcome."""
        return Counter(self.cases.values())

    @property
    def verdict(self) -> Literal["sound", "wrong", "not judged"]:
        """``wrong`` with a finding; ``sound`` if every case was tried and is right."""
        if self.findings:
            return "wrong"
        whole = self.counts["right"] and self.counts["right"] == len(self.cases)
        return "sound" if whole and not self.reason else "not judged"

    @property
    def exit_code(self) -> int:
        """0 if the function is sound, 1 if it is wrong, 2 if it could not be judged."""
        return {"sound": 0, "wrong": 1, "not judged": 2}[self.verdict]

    @property
    def keeps_state(self) -> bool:
        """Whether earlier calls disturb later ones, so that no other case can be judged."""
        return any(found.kind == "differs from call to call" for found in self.findings)

    def left_out(self, seconds: float) -> str:
        """Return what to say of cases for which there was no time; an empty text without any."""
        late = self.counts["out of time"]
        if not late:
            return ""
        return (
            f"{late} of {len(self.cases)} cases could not be tried within {seconds:g} s; allow "
            f"more seconds, or try fewer world sizes"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            **header("audit"),
            "target": self.target,
            "backend": self.backend,
            "verdict": self.verdict,
            "assumes": list(self.assumes),
            "cases": [asdict(s) | {"outcome": o} for s, o in self.cases.items()],
            "findings": [
                {
                    "kind": f.kind,
                    "name": f.name,
                    "sentence": f.sentence,
                    "case": case_text(f.settings),
                    "replay": f.replay,
                    "weights": list(f.weights),
                    "fair": list(f.fair),
                    "details": f.details,
                }
                for f in self.findings
            ],
            "warnings": self.warnings,
            "reason": self.reason,
            "details": self.details,
            "seconds": self.seconds,
        }


def case_text(settings: Settings) -> str:
    """Return a case as `disteval.audit.cases.parse` reads it."""
    words = [f"N={settings.size}", f"B={settings.batch_size}", f"W={settings.world_size}"]
    words += [f"workers={settings.num_workers}"] * (settings.num_workers > 0)
    words += ["shuffle"] * settings.shuffle + ["tokens"] * settings.tokens
    words += ["ids"] * settings.ids
    words += [f"seed={settings.seed}"] * (settings.seed != 0)
    return ",".join(words)


def replay(
    target: str,
    backend: str,
    launcher: str | None,
    settings: Settings,
    started_by: Sequence[str] = (),
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """Return the command that tries one case alone; in Python for a function that has no name."""
    if not _IMPORTABLE.fullmatch(target):
        given: dict[str, Any] = {"case": case_text(settings)}
        given |= {"backend": backend} if backend != "torch_cpu" else {}
        given |= {"launcher": launcher} if launcher else {}
        given |= {"timeout": timeout} if timeout != DEFAULT_TIMEOUT else {}
        settled = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"disteval.audit.audit(evaluate, {settled})"
    words = [*started_by, "disteval", "audit", target, "--case", case_text(settings)]
    words += ["--backend", backend] * (backend != "torch_cpu")
    words += ["--launcher", launcher] if launcher else []
    words += ["--timeout", f"{timeout:g}"] * (timeout != DEFAULT_TIMEOUT)
    return shlex.join(words)
