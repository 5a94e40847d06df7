"""The tests: every rule for every backend at every world size."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.bench import Bench
from disteval.conformance.check import check_rule, select_rules
from disteval.conformance.plugin import failure_text, replay
from disteval.conformance.rule import Rule
from disteval.conformance.summary import RESULT
from disteval.text import visible


@pytest.mark.parametrize("rule", select_rules(), ids=lambda rule: rule.number)
def test_rule(worlds: Bench, rule: Rule, request: pytest.FixtureRequest) -> None:
    """Check the backend under test against one rule of the contract."""
    result = check_rule(rule, worlds)
    request.node.stash[RESULT] = result
    again = f"again: {replay(request.config, worlds.session.name, result)}"
    if result.outcome == "unsupported":
        pytest.skip(visible(result.message))
    if result.outcome == "error":
        pytest.fail(
            visible(f"not judged, so neither kept nor broken: {result.message}\n{again}"),
            pytrace=False,
        )
    if result.outcome == "failed":
        text = failure_text(request.config, worlds.session.name, result)
        pytest.fail(visible(f"{text}\n{again}"), pytrace=False)
    assert result.examples > 0
