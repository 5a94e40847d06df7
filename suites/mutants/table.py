"""The table of mutants: the rule that found each mutant broken, and the example."""

from __future__ import annotations

import shutil

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for key in ("passed", "failed") for r in terminalreporter.stats.get(key, [])]
    rows = [row for r in reports for name, row in r.user_properties if name == "mutant"]
    if not rows:
        return
    terminalreporter.section("mutants and the examples that killed them")
    for name, rule, size, seen in rows:
        line = f"{name:36} {rule:4} W={size}  {seen}".replace("\n", " ")
        terminalreporter.write_line(line[: shutil.get_terminal_size().columns])
    killed = sum(seen != "survived" for *_, seen in rows)
    terminalreporter.write_line(f"{killed} of {len(rows)} killed")
