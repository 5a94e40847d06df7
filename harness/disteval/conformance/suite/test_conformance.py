"""The tests: every rule for every backend at every world size."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.bench import Bench
from disteval.conformance.check import check_rule, select_rules
from disteval.conformance.plugin import RESULT, failure_text
from disteval.conformance.results import CheckReport
from disteval.conformance.rule import Rule
from disteval.text import visible


@pytest.mark.parametrize("rule", select_rules(), ids=lambda rule: rule.number)
def test_rule(worlds: Bench, rule: Rule, pytestconfig: pytest.Config, request: Any) -> None:
    """Check the backend under test against one rule of the contract."""
    result = check_rule(rule, worlds)
    name, timeout = str(worlds.session.backend), pytestconfig.getoption("world_timeout")
    result.replay = CheckReport(name, worlds.cls, 0, worlds.examples, timeout).replay(result)
    request.node.stash[RESULT] = result
    if result.outcome == "unsupported":
        pytest.skip(visible(result.message))
    if result.outcome == "error":
        unjudged = f"not judged, so neither kept nor broken: {result.message}"
        pytest.fail(visible(f"{unjudged}\nagain: {result.replay}"), pytrace=False)
    if result.outcome == "failed":
        pytest.fail(visible(failure_text(pytestconfig, name, result)), pytrace=False)
    assert result.examples > 0
