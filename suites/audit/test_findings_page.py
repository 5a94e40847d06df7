"""The findings are told of the corpus as it registers itself."""

from __future__ import annotations

import importlib

from suites.findings.table import entries
from suites.helpers.needs import framework, needs

framework("torch")

from suites.evalbugs.__main__ import MODULES  # noqa: E402
from suites.evalbugs.table import ENTRIES  # noqa: E402

pytestmark = needs("torch")


def test_the_corpus_is_read_as_it_registers_itself() -> None:
    for module in MODULES:
        importlib.import_module(f"suites.evalbugs.{module}")
    read = entries()
    assert len([entry for entry in ENTRIES if entry.kind]) > 30
    assert {(e.target.removeprefix("suites.evalbugs."), e.release): e for e in ENTRIES} == read
