"""``disteval backends`` says which backends can be used here, and the documents agree."""

import json
from pathlib import Path
from typing import Any

import pytest
from disteval import list_all_backends
from disteval.judging.report import header

from suites.helpers.command import invoke
from suites.helpers.needs import each

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


def rows() -> dict[str, Any]:
    """Return what the command says of each backend."""
    done = invoke("backends", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [*found] == [*header("backends"), "backends"]
    return {row["name"]: row for row in found["backends"]}


def test_every_backend_is_listed_with_its_reasons() -> None:
    found = rows()
    assert list(found) == list_all_backends()
    assert [*found["non_dist"]["cannot"]] == ["multi_rank"]
    assert found["threads"]["launcher"] == "threads"
    for name, row in found.items():
        assert row["available"] or f"'{name}' can't be used" in row["why_not"]


def test_the_table_names_what_is_missing() -> None:
    done = invoke("backends")
    assert done.exit_code == 0
    for name in list_all_backends():
        assert name in done.stdout
    assert "multi_rank" in done.stdout
    if "not installed" in done.stdout:  # each has its extra, and one line says where
        assert done.stdout.count("in a clone") == 1


@pytest.mark.parametrize("name", each(*list_all_backends()))
def test_the_page_says_what_the_code_declares(name: str) -> None:
    if not PAGE.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    found, lines = rows()[name], PAGE.read_text().splitlines()
    if found["available"]:
        library = f"`{found['library']}`" if found["library"] else "none"
        cannot = [f"`{each}`: {reason}" for each, reason in found["cannot"].items()] or ["nothing"]
        cells = (f"`{name}`", library, found["devices"], found["launcher"], "<br>".join(cannot))
        assert f"| {' | '.join(cells)} |" in lines
    else:
        assert any(line.startswith(f"| `{name}` |") for line in lines)
