"""Each class of torchmetrics does on ragged and empty ranks what docs/torchmetrics.md says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from suites.arrays.torchmetrics_rows import ROWS, VARIANTS, Row
from suites.arrays.torchmetrics_table import (
    BATCHES,
    COMMAND,
    NOT_TRIED,
    PAGE,
    YES,
    outcome,
    page,
    public_classes,
)
from suites.helpers.requirements import framework


@pytest.fixture
def tm() -> Any:
    framework("torch")
    return framework("torchmetrics")


@pytest.fixture
def written() -> str:
    if not PAGE.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    return PAGE.read_text()


def listed(text: str) -> dict[str, str]:
    """Return what the page says of each class, with its settings where it shows them."""
    found = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif row := re.match(r"\| `(.+)` \| (.+) \|$", line):
            found[f"{section} {row[1]}"] = row[2]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [*ROWS, *VARIANTS], ids=str)
def test_a_class_has_the_result_of_one_process_or_is_refused(
    row: Row, tm: Any, written: str
) -> None:
    module, _, name = str(row).partition(".")
    section = "Settings that change the states" if row.shown else module
    found = outcome(row)
    assert found in (YES, BATCHES) or found.startswith("refused: ")
    says = listed(written).get(f"{section} {name}")
    assert says == found, f"{PAGE.name} says {says}; write it anew with {COMMAND}"


def test_the_page_is_as_the_rows_are_and_has_every_class(tm: Any, written: str) -> None:
    if f"torchmetrics {tm.__version__}," not in written:
        pytest.skip(f"{PAGE.name} is about another version than torchmetrics {tm.__version__}")
    missing = public_classes() - {str(row) for row in ROWS} - NOT_TRIED.keys()
    assert not missing, f"add rows, or reasons why not, for {sorted(missing)}"
    there = listed(written)
    says = {
        str(row): there.get(
            f"Settings that change the states {str(row).partition('.')[2]}"
            if row.shown
            else str(row).replace(".", " ", 1),
            "",
        )
        for row in [*ROWS, *VARIANTS]
    }
    assert page(says) == written, f"{PAGE.name} is not as it would be written; run {COMMAND}"
