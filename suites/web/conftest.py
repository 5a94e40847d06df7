"""Chromium, and pages of real checks in it."""

from __future__ import annotations

import json
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
def versions(reports: dict[str, Path]) -> Path:
    """Write the page of two versions of one backend, of which the older breaks a rule."""
    found = json.loads(reports["threads"].read_text())
    page = reports["threads"].with_name("versions.html")
    files = [page.with_name(f"{version}.json") for version in ("0.2.0", "0.1.0")]
    for file in files:
        told = found | {
            "target_version": file.stem,
            "created": f"2026-11-0{file.stem[2]}T00:00:00Z",
        }
        file.write_text(json.dumps(told))
        [result] = (r for r in found["rules"] if (r["id"], r["world_size"]) == ("2.1", 2))
        result["outcome"] = "failed"
    disteval(page.parent, "report", *map(str, files), f"--html={page}")
    return page


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
