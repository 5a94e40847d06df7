"""Audits of loops, in cases that are named as users name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from disteval.audit import Audit, AuditReport, Case
from disteval.audit.case import Fetches
from disteval.audit.cases import parse
from disteval.audit.planted import Planted


def planted_case(name: str, folder: Path) -> Case:
    """Return a case that is named as in ``--case``, with samples of both kinds of ids."""
    settings = parse(name)
    planted = Planted(settings.size, tokens=True, other_ids=True)
    return Case(settings, planted, 0, Fetches(folder, 0), folder)


def audited(loop: Any, *arguments: Any, case: str = "", **options: Any) -> AuditReport:
    """Audit a loop, in all cases or in one that is named as in ``--case``."""
    return Audit(loop, *arguments, only=parse(case) if case else None, **options).run()


def first_finding(report: AuditReport) -> tuple[str, str]:
    """Return the kind and the case of the first finding of a loop that is wrong."""
    assert report.verdict == "wrong", (report.counts, report.reason, report.details)
    found = report.to_json()["findings"][0]
    return found["kind"], found["case"]


def shorten_first_calls(patched: pytest.MonkeyPatch) -> None:
    """Give the first call of new ranks no more time than a later one."""
    patched.setattr("disteval.audit.worlds._TIMES_FIRST", 1.0)


def shorten_calls_after_a_hang(patched: pytest.MonkeyPatch) -> None:
    """Give calls one second after a call that hung, whatever earlier ones took."""
    patched.setattr("disteval.audit.worlds._LEAST_SECONDS", 1.0)
    patched.setattr("disteval.audit.worlds._TIMES_SLOWER", 0.0)
