"""The report of an audit fits the schema, and its page shows the matrix and the weights."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from disteval.audit import Audit
from disteval.report.audits import matrix_of

from suites.audit.right import sums_of_integers
from suites.audit.wrong import counts_padding, returns_positions_as_ids
from suites.helpers.needs import needs


@pytest.fixture(scope="module")
def wrong() -> dict[str, Any]:
    return Audit(counts_padding, (1, 2), backend="threads").run().to_json()


@needs("jsonschema")
def test_the_report_fits_the_schema(wrong: dict[str, Any]) -> None:
    from disteval.report.files import why_no_run

    assert why_no_run(wrong) == ""
    assert why_no_run(wrong | {"verdict": "fine"}) != ""


@needs("jinja2")
def test_the_page_shows_cases_weights_and_the_command(wrong: dict[str, Any]) -> None:
    from disteval.report.page import render

    page = render([("a.json", wrong)])
    said = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    assert "counts_padding is wrong" in said
    assert "N W=1 B=1 W=1 B=2 W=1 B=3 W=1 B=4 W=2 B=1" in said
    assert "3 ✓ pass ✓ pass ✓ pass ✓ pass ✗ FAIL" in said
    assert "sample weight should be weight, drawn 0 0.5 0.3333 1 0.25 0.3333" in said
    assert "disteval audit suites.audit.wrong:counts_padding --case N=3,B=1,W=2" in said
    assert '<meter min="0" max="0.5" value="0.25">' in page


@needs("jinja2")
def test_a_sound_loop_has_no_findings_on_its_page() -> None:
    from disteval.report.page import render

    report = Audit(sums_of_integers, (1, 2), backend="threads").run()
    page = render([("a.json", report.to_json())])
    assert "sums_of_integers</code> is sound" in page
    assert "FAIL" not in page


def test_a_case_with_other_ids_is_not_in_the_matrix() -> None:
    matrix = matrix_of(Audit(returns_positions_as_ids, (1,), backend="threads").run().to_json())
    assert {outcome for _, row in matrix.rows for outcome in row} <= {"passed", None}
    assert "wrong" in {case["outcome"] for case in matrix.others if case["ids"]}
