"""A package that is missing is named, with a command that installs it today."""

import subprocess
import sys

import pytest
from disteval.errors import LibraryMissingError
from disteval.extras import needs, when_used


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module", name="jinja2.ext"), "'jinja2' is not installed"),
        (ImportError("a symbol", name="jinja2"), r"'jinja2' can't be imported \(a symbol\)"),
    ],
)
def test_a_missing_package_comes_with_its_remedy(error: ImportError, reason: str) -> None:
    remedy = r"Install it: pip install '\.\[report\]' in a clone, or pip install 'WHEEL\[report\]'"
    with (
        pytest.raises(LibraryMissingError, match=f"a page can't be used: .* {reason}. {remedy}"),
        needs("a page", "report"),
    ):
        raise error


def test_a_fault_of_this_library_is_not_called_a_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError, match="no such file"), needs("a page", "report"):
        raise ModuleNotFoundError("no such file", name="disteval.report.nothing")


def test_a_module_is_imported_when_it_is_used_and_not_before() -> None:
    code = """
import sys
from disteval.extras import when_used
module = when_used("colorsys")
assert "colorsys" not in sys.modules
assert module.rgb_to_hls(1, 1, 1) == (0, 1, 0)
assert "colorsys" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_package_that_is_not_there_is_missed_before_it_is_used() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught:
        when_used("no_such_package.module")
    assert caught.value.name == "no_such_package"
