"""The report page of real checks works in a real browser.

Every test ends with: the console said nothing, and nothing was requested but the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from disteval.conformance.check import select_rules

from suites.helpers.needs import needs

pytestmark = needs("jinja2", "selenium", "chromium")

if TYPE_CHECKING:
    from suites.web.browser import Browser

RULES = len(select_rules())
PHONE = (320, 640)
CONTRAST = Path(__file__).with_name("contrast.js").read_text()
WIDTH = "return document.documentElement.scrollWidth"


@pytest.fixture
def keys() -> type:
    from selenium.webdriver.common.keys import Keys

    return Keys


def failed(page: Path) -> list[dict[str, object]]:
    """Return the failures in the JSON of a page."""
    found = json.loads(page.with_name("hostile.json").read_text())
    return [result for result in found["rules"] if result["outcome"] == "failed"]


def test_every_failure_of_a_broken_backend_is_in_the_matrix_and_in_the_list(
    browser: Browser, failing: Path
) -> None:
    count = len(failed(failing))
    assert count >= 20
    browser.open(failing)
    told = browser.one("h1").text
    assert ("hostile:Hostile" in told, "is broken" in told) == (True, True)
    listed = browser.driver.find_elements("css selector", ".failure")  # some are folded
    assert len(browser.shown(".matrix a")) == len(listed) == count
    for link in browser.shown(".matrix a")[:3]:
        assert link.text.split() == ["✗", "FAIL"]
        target = browser.run("return document.querySelector(arguments[0].hash).id", link)
        assert target.startswith("failure-")


def test_objects_that_attack_are_text(browser: Browser, failing: Path) -> None:
    from suites.web.hostile import SHOWN

    browser.open(failing)
    browser.one("#all").click()
    attack = browser.one(".failure:nth-of-type(2) pre:nth-of-type(2)")
    assert SHOWN in attack.text
    assert browser.run("return typeof ran") == "undefined"
    assert browser.shown("img") == []
    assert len(browser.driver.find_elements("css selector", "script")) == 1


def test_markup_that_got_into_the_page_would_not_run(browser: Browser, failing: Path) -> None:
    browser.open(failing)
    attack = "<img src='x.png' onerror='ran = 1'><a id='trap' href='javascript:ran = 1'>x</a>"
    browser.run("document.querySelector('#main').innerHTML = arguments[0]", attack)
    browser.one("#trap").click()
    browser.run("const s = document.createElement('script'); s.text = 'ran = 1'; "
                "document.body.append(s)")  # fmt: skip
    assert browser.run("return typeof ran") == "undefined"
    refused = browser.problems()
    assert refused
    assert [problem for problem in refused if "Security Policy" not in problem] == []


def test_words_choose_rules_failures_and_backends(browser: Browser, several: Path) -> None:
    browser.open(several)
    words = browser.one("#words")
    words.send_keys("Reversed 2.3")
    [head] = browser.shown(".matrix thead .first[data-label]")
    assert head.text.endswith(":ReversedOrder")
    assert [row.text.split()[0] for row in browser.shown(".matrix tbody tr")] == ["2.3"]
    [failure] = browser.shown(".failure")
    assert "ReversedOrder" in failure.text
    # The other failures of that mistake are folded below it, and are counted.
    assert browser.one("#count").text.startswith(f"1 of {RULES} rules, 2 of ")
    words.clear()
    words.send_keys("no such words")
    assert browser.shown(".matrix tbody tr") == browser.shown(".failure") == []
    assert browser.one(".nothing").is_displayed()


def test_only_failures(browser: Browser, several: Path) -> None:
    browser.open(several)
    browser.one("#only").click()
    for row in browser.shown(".matrix tbody tr"):
        assert "FAIL" in row.text
    reasons = browser.shown("#reasons ~ * tbody tr")
    assert reasons == []
    browser.one("#words").send_keys("threads ")
    assert browser.shown(".matrix tbody tr") == []  # that backend has none
    browser.one("#only").click()
    assert len(browser.shown(".matrix tbody tr")) == RULES


def test_a_failure_is_found_and_opened_with_the_keyboard_alone(
    browser: Browser, failing: Path, keys: type
) -> None:
    browser.open(failing)
    browser.press(keys.TAB)
    assert browser.driver.switch_to.active_element.get_attribute("href").endswith("#main")
    browser.press(keys.ENTER)
    for _ in range(12):
        browser.press(keys.TAB)
        if browser.run("return document.activeElement.matches('.matrix a')"):
            break
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.press(keys.ENTER)
    opened = "return document.activeElement.matches('.failure[open] summary')"
    wait_for(browser, opened, True)
    fragment = browser.run("return location.hash")
    assert fragment.startswith("#failure-")
    browser.press(keys.ENTER)
    wait_for(browser, opened, False)
    browser.press(keys.SPACE)
    wait_for(browser, opened, True)
    [failure] = browser.shown(".failure[open]")
    assert failed(failing)[0]["replay"].partition(" --rules")[0] in failure.text


def test_a_link_to_a_failure_that_is_folded_opens_what_it_is_folded_under(
    browser: Browser, several: Path
) -> None:
    browser.open(several)
    assert browser.shown(".failure .failure") == []
    browser.run("location.hash = document.querySelector('.failure .failure').id")
    [outer, inner] = browser.shown(".failure[open]")
    assert inner.text in outer.text
    assert "disteval check " in inner.text


def test_the_replay_command_is_copied(browser: Browser, failing: Path, keys: type) -> None:
    browser.open(failing)
    browser.one(".failure summary").click()
    copy = browser.one(".failure .copy")
    named = copy.accessible_name
    mine = [f for f in failed(failing) if f"rule {f['id']}, " in named]
    [first] = [f for f in mine if named.endswith(f" at W={f['world_size']}")]
    copy.click()
    said = "return document.querySelector('#status').textContent"
    wait_for(browser, said, "The command was copied.")
    browser.one("#words").send_keys(keys.CONTROL, "v")
    assert browser.one("#words").get_attribute("value") == first["replay"]


def test_a_phone_does_not_scroll_sideways(browser: Browser, several: Path) -> None:
    browser.open(several, size=PHONE)
    browser.one("#all").click()
    assert browser.run(WIDTH) == PHONE[0]
    # The matrix does so in a box of its own, which the keyboard reaches.
    box = browser.one(".scroll:has(.matrix)")
    scrolls = browser.run("return arguments[0].scrollWidth > arguments[0].clientWidth", box)
    assert scrolls
    assert box.get_attribute("tabindex") == "0"


def test_tables_say_which_rule_and_world_a_cell_is_of(browser: Browser, several: Path) -> None:
    browser.open(several)
    for head in browser.driver.find_elements("css selector", "th"):
        assert head.get_attribute("scope") in ("row", "col", "colgroup", "rowgroup")
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    names = {(n["role"]["value"], n.get("name", {}).get("value")) for n in nodes if "role" in n}
    expected = {
        ("rowheader", "2.1 all-gather order"), ("columnheader", "W=2"), ("columnheader", "threads"),
        ("searchbox", "Filter"), ("checkbox", "only failures"), ("main", ""),
    }  # fmt: skip
    assert expected - names == set()


def test_a_lost_world_shows_the_stack_of_each_rank(browser: Browser, several: Path) -> None:
    browser.open(several)
    browser.one("#words").send_keys("Absent")
    [failure] = browser.shown(".failure")
    failure.click()
    assert "all_gather_object" in failure.text
    titles = [s.text for s in browser.shown(".failure[open] .evidence summary")]
    assert titles == ["stack of rank 0", "stack of rank 1"]
    browser.shown(".failure[open] .evidence summary")[1].click()
    stack = browser.one(".failure[open] .evidence[open] pre").text
    assert "hostile.py" in stack


def test_charts_and_wide_tables_stay_within_the_page(browser: Browser, measured: Path) -> None:
    for size in (PHONE, (1200, 900)):
        browser.open(measured, size=size)
        assert browser.run(WIDTH) <= size[0]
        loaded = browser.run(
            "return [...document.images].map((i) => [i.complete, i.naturalWidth > 0, i.alt > ''])"
        )
        assert loaded == [[True, True, True]]
    boxes = browser.driver.find_elements("css selector", ".scroll")
    for box in boxes:  # nothing is cut off at the right of a usual window
        assert browser.run("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)
    assert len(boxes) >= 3


def test_every_text_can_be_read_in_the_light_and_in_the_dark(
    browser: Browser, several: Path
) -> None:
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.command("Emulation.setEmulatedMedia", features=[dark])
    browser.open(several)
    browser.one("#all").click()
    (contrast, in_the_dark), _ = browser.run(CONTRAST), browser.one("#theme").click()
    other, in_the_light = browser.run(CONTRAST)
    browser.command("Emulation.setEmulatedMedia", features=[])
    assert min(contrast, other) >= 4.5
    assert in_the_dark < 0.1 < 0.9 < in_the_light


def test_every_card_has_its_border_all_around(
    browser: Browser, several: Path, measured: Path
) -> None:
    for page in (several, measured):
        browser.open(page)
        browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        cards = browser.run(
            "return [...document.querySelectorAll('.failure')].map((card) => ["
            "  getComputedStyle(card).borderWidth, getComputedStyle(card).borderStyle,"
            "  card.getBoundingClientRect().bottom"
            "    - card.querySelector('.body').getBoundingClientRect().bottom])"
        )
        assert cards
        assert all(card == ["1px", "solid", 1] for card in cards), cards


def wait_for(browser: Browser, script: str, expected: object) -> None:
    """Wait until a script returns what is expected."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser.driver, 10, 0.05).until(
        lambda _: browser.run(script) == expected, f"{script} is {browser.run(script)!r}"
    )
