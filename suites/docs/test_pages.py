"""Links lead to existing targets, and pages that list parts of the code list all of them."""

import importlib
import re
import sys

import disteval
import pytest

from suites.docs.pages import FINDINGS, PAGES, ROOT, prose_of, text_of
from suites.helpers.processes import run_plainly

_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, *FINDINGS])
def test_every_link_of_a_page_leads_to_something(page: str) -> None:
    for link in _LINK.findall(prose_of(page)):
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page} links to {path}"
        assert target.is_relative_to(ROOT), f"{page} links out of the repository: {path}"
        if anchor:
            there = anchors_of(target.relative_to(ROOT).as_posix())
            assert anchor in there, f"{page} links to {link}; the page has {sorted(there)}"


def anchors_of(page: str) -> set[str]:
    """Return the anchors of a page: its headings, as code hosts write them."""
    headings = _HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("tool", ["write_contract.py", "write_command_line.py"])
def test_a_page_has_every_rule_or_option_as_it_is(tool: str) -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    words = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = run_plainly(words, ROOT, 60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_count_the_rules_as_they_are() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from disteval.conformance.check import select_rules

    rules = select_rules()
    plain = [rule for rule in rules if not rule.number.startswith("9.")]
    pages = text_of("docs/report.md") + text_of("docs/running.md") + text_of("docs/suites.md")
    counts = re.findall(r"\b[Oo]f (\d+)[)*]", pages)
    assert {*map(int, counts)} == {len(plain), len(rules)}  # of templates
    required = sum(rule.level != "optional" for rule in plain)
    assert {*re.findall(r"all (\d+) required", pages)} == {str(required)}


def test_the_reference_has_every_public_name_once() -> None:
    page = text_of("docs/reference.rst")
    listed = re.findall(r"^   ([a-z_]+)\.(\w+)$", page, re.M)
    assert sorted(name for _, name in listed) == sorted(disteval.__all__)
    for module, name in listed:
        found = getattr(importlib.import_module(f"disteval.{module}"), name)
        assert found is getattr(disteval, name)
        assert f".. automodule:: disteval.{module}\n" in page
