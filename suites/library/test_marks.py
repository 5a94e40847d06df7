"""Each test carries the markers of what it needs, and some session selects it."""

from __future__ import annotations

import pytest

from suites.helpers import requirements
from suites.helpers.marks import check_that_a_session_selects, needing
from suites.helpers.requirements import framework


def _markers(request: pytest.FixtureRequest) -> set[str]:
    return {marker.name for marker in request.node.iter_markers()}


def test_a_test_that_asks_for_no_library_needs_nothing(request: pytest.FixtureRequest) -> None:
    assert _markers(request) == {"needs_nothing"}


@pytest.mark.parametrize("backend", ["torch_cpu"])
def test_a_parameter_names_what_is_needed(request: pytest.FixtureRequest, backend: str) -> None:
    assert _markers(request) == {"parametrize", "torch"}


@pytest.mark.parametrize("example", [pytest.param(1, marks=needing(["torchrun", "a page"]))])
def test_a_parameter_may_carry_the_marker(request: pytest.FixtureRequest, example: int) -> None:
    assert _markers(request) == {"parametrize", "torch"}


def test_what_a_test_asks_for_is_needed(request: pytest.FixtureRequest) -> None:
    framework("torch")
    assert _markers(request) == {"torch"}


def test_what_a_test_asks_for_by_its_full_name_is_needed(request: pytest.FixtureRequest) -> None:
    requirements.framework("torch")
    assert _markers(request) == {"torch"}


def test_a_test_that_no_session_selects_ends_the_collection(request: pytest.FixtureRequest) -> None:
    check_that_a_session_selects([request.node], ["torch", "needs_nothing and not docs"])
    with pytest.raises(pytest.UsageError, match="needs needs_nothing, and no session in suites/"):
        check_that_a_session_selects([request.node], ["torch", "docs"])
