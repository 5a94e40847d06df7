"""The page of a comparison shows 10,000 samples that changed as text, and filters them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from disteval.report.compared import COLUMNS, write_comparisons

from suites.helpers.needs import needs
from suites.web.test_page import CONTRAST, PHONE, WIDTH

pytestmark = needs("jinja2", "selenium", "chromium")

if TYPE_CHECKING:
    from suites.web.browser import Browser

ATTACK = "</script><script>ran = 1</script><img src=x onerror='ran = 1'>\u202e"
SIZE = 10_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("compared") / "page.html", SIZE)


def write(path: Path, size: int) -> Path:
    same = "as I said before, and so on " * 30
    rows = [dict.fromkeys(COLUMNS) | {
        "id": f"id-{i}", "group": "xy"[i % 2], "outcome": ("win", "loss", "tie", "unscored")[i % 4],
        "prompt": f"what is {i}?", "prompt_b": f"what is {i}?", "fate": "scored", "fate_b": "cut",
        "answer": f"{same}, it is {i}", "answer_b": f"{same}, it is {ATTACK}!", "score": 0.0,
    } for i in range(size)]  # fmt: skip
    whole = {
        "group": None, "policy": "left out", "pairs": size, "of": size, "first": 0.5,
        "second": 0.25, "low": -0.5, "difference": -0.25, "high": 0.5, "error": 0.1, "wins": 0,
        "losses": 0, "ties": 0, "test": "Wilcoxon", "p": 0.5, "holm": None, "detectable": 0.3,
    }  # fmt: skip
    found = {"first": "a.jsonl", "second": f"b{ATTACK}", "only_first": [ATTACK], "only_second": []}
    write_comparisons(path, [{**found, "notes": [ATTACK], "outcomes": [whole]}], [rows])
    return path


def test_ten_thousand_samples_are_filtered(browser: Browser, page: Path) -> None:
    browser.open(page)
    found = browser.one("#found")
    assert found.text == f"1–25 of {SIZE} ({SIZE} changed)"
    assert len(browser.shown("article")) == 25
    browser.one("#text").send_keys("ID-77 what")
    assert found.text == f"1–25 of 111 ({SIZE} changed)"  # 77, 770 to 779, 7700 to 7799
    browser.one("#outcome").send_keys("losses")
    browser.one("#after").click()
    assert found.text == f"26–28 of 28 ({SIZE} changed)"
    assert not browser.one("#after").is_enabled()
    browser.one("#group").send_keys("x")
    assert found.text == f"0–0 of 0 ({SIZE} changed)"  # losses have odd numbers


def test_what_models_say_is_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert "</script><script>ran = 1" in browser.one("article .pair > :last-child pre").text
    assert browser.one("article mark").text == "0"  # the number, before which all is equal
    assert browser.run("return typeof ran") == "undefined"
    assert browser.shown("img") == []
    assert len(browser.driver.find_elements("css selector", "script")) == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_it_in_both_themes(browser: Browser, page: Path, theme: str) -> None:
    browser.open(page, size=PHONE)
    browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
    assert browser.run(WIDTH) == PHONE[0]
    contrast, light = browser.run(CONTRAST)
    assert (contrast >= 4.5, light > 0.5) == (True, theme == "light")


def test_more_than_a_page_holds_is_said(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disteval.report.compared.MAX_BYTES", 1 << 20)
    browser.open(write(tmp_path / "page.html", 1_000))
    assert "are too many for a page" in browser.one("#found").text
