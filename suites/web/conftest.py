"""Chromium, and pages of real checks in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.helpers.command import disteval

if TYPE_CHECKING:
    from suites.web.browser import Browser

CHECKS = {
    "hostile": ("suites.web.hostile:Hostile", "--world-size=1,2"),
    "reversed": ("suites.mutants.broken.gathered:ReversedOrder", "--world-size=2", "--rules=2.*"),
    "absent": ("suites.web.hostile:Absent", "--world-size=2", "--rules=2.1", "--timeout=1"),
    "unwritten": ("suites.mutants.broken.gathered:NotWritten", "--world-size=2", "--rules=2.*"),
    "threads": ("threads", "--world-size=2"),
}
"""Each file, and the check that writes it."""


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory, chromium_browser: Browser) -> dict[str, Path]:
    """Write the JSON of each of `CHECKS`, if there is a browser."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name, check in CHECKS.items():
        found[name] = folder / f"{name}.json"
        done = disteval(folder, "check", *check, "--examples=3", f"--json={found[name]}")
        assert found[name].exists(), done
    return found


@pytest.fixture(scope="session")
def failing(reports: dict[str, Path]) -> Path:
    """Write the page of one check with many failures."""
    page = reports["hostile"].with_suffix(".html")
    disteval(page.parent, "report", str(reports["hostile"]), f"--html={page}")
    return page


@pytest.fixture(scope="session")
def several(reports: dict[str, Path]) -> Path:
    """Write the page of all checks."""
    page = reports["threads"].with_name("several.html")
    disteval(page.parent, "report", *map(str, reports.values()), f"--html={page}")
    return page


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of an audit, of evaluations on one and two ranks, and of a trace."""
    folder = tmp_path_factory.mktemp("measured")
    audit = ("suites.audit.wrong:counts_padding", "--backend=threads", "--json=audit.json")
    words = ("suites.report.test_values:task", "--backend=threads")
    for command in (
        ("audit", *audit),
        ("eval", *words, "--world-size=1", "--json=1.json"),
        ("eval", *words, "--world-size=2", "--json=2.json", "--trace=trace"),
        ("report", "audit.json", "1.json", "2.json", "trace", "--html=page.html"),
    ):
        done = disteval(folder, *command)
        assert done.returncode == (1 if command[0] == "audit" else 0), done
    return folder / "page.html"


@pytest.fixture(scope="session")
def chromium_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program and driver
    from suites.web.browser import Browser

    browser = Browser(program, driver, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium_browser: Browser) -> Iterator[Browser]:
    """Return a browser, and check at the end that it saw no error and sent no request."""
    yield chromium_browser
    assert chromium_browser.problems() == []
