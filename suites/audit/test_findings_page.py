"""docs/findings.md says about each loop of the corpus what the audit must say about it."""

from __future__ import annotations

import importlib
import re

import pytest

from suites.docs.pages import text_of
from suites.requirements import framework

framework("torch")

from suites.evalbugs.__main__ import MODULES  # noqa: E402
from suites.evalbugs.table import ENTRIES, Entry  # noqa: E402

pytestmark = pytest.mark.torch
JUDGED = {"defect": "defect", "documented": "documented", "user": "mistake"}


@pytest.fixture(scope="module", autouse=True)
def entries() -> list[Entry]:
    """The table of the corpus, which the modules of its loops fill."""
    for module in MODULES:
        importlib.import_module(f"suites.evalbugs.{module}")
    return ENTRIES


def _rows(entry: Entry) -> list[list[str]]:
    """Return the cells of the rows of a loop, in the table of its release."""
    newest, older = text_of("docs/findings.md").split("### Older releases")
    name = entry.target.removeprefix("suites.evalbugs.")
    lines = (older if entry.release else newest).splitlines()
    rows = (line for line in lines if line.startswith("|") and f"`{name}`" in line)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_conviction_has_a_row_with_its_case_and_kind(entries: list[Entry]) -> None:
    # Of loops whose convictions are new in this release, the table of older ones tells.
    before = {e.target for e in entries if e.release and not e.kind}
    wrong = [e for e in entries if e.kind and (e.release or e.target not in before or _rows(e))]
    assert len(wrong) > 30
    for entry in wrong:
        [cells] = _rows(entry)
        case, said = cells[2], " | ".join(cells)
        size, batch, ranks = re.findall(r"[NBW]=\d+", entry.case)
        assert case.startswith(f"{size}, {batch}, {ranks}"), entry
        assert entry.kind in said, entry
        assert entry.release in said, entry
        assert entry.release or JUDGED[entry.judged] in cells[4], entry


def test_each_loop_that_an_older_release_got_right_has_a_row(entries: list[Entry]) -> None:
    for entry in (e for e in entries if e.release and not e.kind):
        [cells] = _rows(entry)
        assert (entry.release in cells[1], cells[3]) == (True, "sound"), entry
