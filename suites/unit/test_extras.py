"""A package that is missing is named, with a command that installs it today."""

from __future__ import annotations

import pytest
from disteval.errors import LibraryMissingError
from disteval.extras import needs


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
