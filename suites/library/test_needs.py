"""Each test says what it needs: some session runs it, and none that lacks that passes it over."""

import pytest

from suites.conftest import SESSIONS, SUITES, check_that_a_session_selects
from suites.helpers.needs import each, needs, require


@pytest.mark.parametrize("name", each("threads", "torch_cpu"))
def test_what_a_parameter_needs_marks_it(request: pytest.FixtureRequest, name: str) -> None:
    markers = {marker.name for marker in request.node.iter_markers()}
    wanted = {"torch", "optional"}
    assert markers & wanted == (wanted if name == "torch_cpu" else set())


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="torch_gpu"):
        needs("torch", "torch_gpu")


def test_what_is_missing_skips_a_test_or_fails_it_if_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISTEVAL_REQUIRE", "threads")
    with pytest.raises(pytest.skip.Exception, match="no_such_library"):
        require("no_such_library")
    monkeypatch.setenv("DISTEVAL_REQUIRE", "threads,no_such_library")
    with pytest.raises(pytest.fail.Exception, match="no_such_library"):
        require("no_such_library")


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_collects_folders_that_are_there(name: str) -> None:
    assert [one for one in SESSIONS[name]["folders"] if not (SUITES / one).exists()] == []


def test_a_test_that_no_session_selects_ends_the_collection(request: pytest.FixtureRequest) -> None:
    here = {"folders": ["library"], "selects": "not optional"}
    check_that_a_session_selects([request.node], [here])
    for wrong in ({"folders": ["metrics"]}, {"selects": "torch"}):
        with pytest.raises(pytest.UsageError, match=request.node.name):
            check_that_a_session_selects([request.node], [here | wrong])
