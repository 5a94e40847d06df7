"""``disteval backends`` says which backends can be used here, and the documents agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from disteval import list_all_backends
from disteval.cli import main
from disteval.cli.backends import Support, support_of

from suites.helpers.needs import each

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


def markdown_row(support: Support) -> str:
    """Return the backend's line of the table on the page."""
    library = f"`{support.library}`" if support.library else "none"
    cannot = "<br>".join(f"`{name}`: {reason}" for name, reason in support.cannot) or "nothing"
    return f"| `{support.name}` | {library} | {support.devices} | {support.launcher} | {cannot} |"


def test_every_backend_is_listed_with_its_reasons() -> None:
    done = CliRunner().invoke(main, ["backends", "--json"])
    assert done.exit_code == 0, done.output
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(found) == list_all_backends()
    assert found["non_dist"]["cannot"] == {"multi_rank": "it is one process by design"}
    assert found["threads"]["launcher"] == "threads"
    for name, row in found.items():
        assert row["available"] or f"'{name}' can't be used" in row["why_not"]


def test_the_table_names_what_is_missing() -> None:
    done = CliRunner().invoke(main, ["backends"])
    assert done.exit_code == 0
    for name in list_all_backends():
        assert name in done.stdout
    assert "non_dist has no multi_rank: it is one process by design" in done.stdout
    if "is not installed" in done.stdout:  # each has its extra, and one line says where
        assert done.stdout.count("in a clone") == 1


@pytest.mark.parametrize("name", each(*list_all_backends()))
def test_the_page_says_what_the_code_declares(name: str) -> None:
    if not PAGE.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    support = support_of(name)
    lines = PAGE.read_text().splitlines()
    if support.available:
        assert markdown_row(support) in lines
    else:
        assert any(line.startswith(f"| `{name}` |") for line in lines)
