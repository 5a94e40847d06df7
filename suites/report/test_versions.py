"""Several checks of one backend are its conformance over time, and a badge says the newest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from disteval.cli import main
from disteval.errors import UsageError
from disteval.report.badge import make_badge
from disteval.report.files import write_run
from disteval.report.model import make_columns, make_rows
from disteval.report.page import render
from disteval.report.versions import make_histories

from suites.helpers.needs import needs

CONTRACT = dict.fromkeys(["1.1", "1.2", "2.1"], "required")
SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</text></title><script>ran = 1</script>'\"&amp;\u202e\x1b"


def run(version: str, day: int, broken: str = "", **more: Any) -> dict[str, Any]:
    """Return the report of a check of one version, made on that day, that may break one rule."""
    texts = dict.fromkeys(("message", "counterexample", "observed", "replay"), "")
    rules = [
        {"id": id_, "name": f"name of {id_}", "sentence": "It holds.", "level": "required",
         "world_size": size, "outcome": "failed" if id_ == broken else "passed", "examples": 1,
         "seconds": 0.5, **texts}
        for id_ in CONTRACT for size in (1, 2)
    ]  # fmt: skip
    return {
        "schema_version": 1, "kind": "check", "version": "0.1.0", "verdict": "conformant",
        "covers": "is perfect", "contract": CONTRACT, "single_rank": "", "required_run": 6,
        "target": "mine", "target_distribution": "my-pkg", "target_version": version,
        "created": f"2026-11-{day:02}T12:00:00Z", "seed": 0, "examples": 5, "timeout": 20.0,
        "launcher": None, "rules": rules, **more,
    }  # fmt: skip


def text_of(badge: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(badge).iter(f"{SVG}text")]


def test_versions_are_told_newest_first_with_what_changed_between_them() -> None:
    older = run("0.1.0", 1, broken="2.1")
    older["rules"] = [r for r in older["rules"] if r["id"] != "1.2"]
    files = [("a", older), ("c", run("0.3.0", 9) | {"version": "0.2.0"}), ("b", run("0.2.0", 5))]
    columns = make_columns(files)
    assert [column.label for column in columns] == ["mine 0.3.0", "mine 0.2.0", "mine 0.1.0"]
    [history] = make_histories(columns, make_rows(columns))
    assert {row.id: [state.word for state in states] for row, states in history.rows} == {
        "1.1": ["pass"] * 3,
        "1.2": ["pass", "pass", "not tried"],
        "2.1": ["pass", "pass", "FAIL"],
    }
    assert [(column.version, changes) for column, changes in history.changes] == [
        ("0.3.0", ["judged by disteval 0.2.0, before by 0.1.0"]),
        ("0.2.0", ["rule 1.2: not tried, now pass", "rule 2.1: FAIL at W=1, 2, now pass"]),
    ]


@pytest.mark.parametrize(
    ("versions", "order"),
    [
        (["0.10.0", "0.9.1", "0.9.0"], ["0.10.0", "0.9.1", "0.9.0"]),
        (["0.2.0rc1", "0.1.0", "0.2.0"], ["0.2.0", "0.1.0", "0.2.0rc1"]),  # no number; by date
    ],
)
def test_the_newest_version_comes_first_also_if_an_older_one_was_checked_again(
    versions: list[str], order: list[str]
) -> None:
    columns = make_columns([(v, run(v, day)) for day, v in enumerate(versions, 1)])
    assert [column.version for column in columns] == order


def test_checks_of_one_version_are_told_apart_by_their_files() -> None:
    columns = make_columns([("a.json", run("0.1.0", 1)), ("b.json", run("0.1.0", 2))])
    assert [column.label for column in columns] == ["mine (b.json)", "mine (a.json)"]
    other = make_columns([("a.json", run("0.1.0", 1)), ("b", run("0.1.0", 2, target="other"))])
    assert make_histories(other, make_rows(other)) == []


@needs("jinja2")
def test_the_page_of_one_backend_is_its_conformance_over_time() -> None:
    page = render([("a", run("0.1.0", 1, broken="2.1")), ("b", run("0.2.0", 2))])
    said = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "Conformance of mine, versions over time" in page
    assert "is conformant: all 3 required rules hold at world sizes 1 and 2 my-pkg 0.2.0" in said
    assert "is broken: it breaks rule 2.1 (of 3) at world sizes 1 and 2 my-pkg 0.1.0" in said
    assert "2.1 name of 2.1 ✓ pass ✗ FAIL W=1, 2" in said
    assert "mine 0.2.0 rule 2.1: FAIL at W=1, 2, now pass" in said
    assert "is perfect" not in page  # what a file says of itself
    assert 'now pass" data-failed>' in page  # so that the filter "only failures" keeps it


def test_a_badge_says_no_more_than_the_newest_version_shows() -> None:
    broken, whole = run("0.1.0", 1, broken="2.1"), run("0.2.0", 2)
    some = whole | {"rules": [r for r in whole["rules"] if r["id"] == "1.1"]}
    alone = {"rules": [r for r in whole["rules"] if r["world_size"] == 1], "single_rank": "x"}
    once = whole | {"rules": [r for r in whole["rules"] if r["world_size"] == 2]}
    told = {
        "✓ conformant": [broken, whole],
        "✗ breaks 1 of 3 rules": [broken | {"target_version": "0.3.0"}, whole],
        "? passes 1 of 3 rules": [some],
        "? passes 3 of 3 rules at world size 2": [once],
        "✓ conformant at world size 1": [whole | alone],
        "? not tried": [whole | {"rules": []}],
        "? passes 3 rules": [{key: value for key, value in whole.items() if key != "contract"}],
    }  # fmt: skip
    for text, runs in told.items():
        columns = make_columns([("a", one) for one in runs])
        badge = make_badge(columns)
        name, said = text_of(badge)
        assert (name, said) == (f"disteval: mine {columns[0].version}", text)
        assert ("#1b6a3d" in badge) == said.startswith("✓ conformant")  # green
        [title] = ElementTree.fromstring(badge).iter(f"{SVG}title")
        assert f"mine {columns[0].version} {columns[0].verdict.covers}. Judged" in (
            title.text or ""
        )


def test_whatever_a_file_says_a_badge_is_a_picture_of_text() -> None:
    honest = make_badge(make_columns([("a", run("0.1.0", 1))]))
    evil = run(EVIL, 1) | dict.fromkeys(("target", "created", "version"), EVIL)
    for result in evil["rules"]:
        result["id"] = EVIL
    attacked = make_badge(make_columns([("a", evil)]))
    tags = [
        [element.tag for element in ElementTree.fromstring(b).iter()] for b in (honest, attacked)
    ]
    assert tags[0] == tags[1]
    assert r"\u202e\x1b" in ElementTree.fromstring(attacked).attrib["aria-label"]
    long = make_badge(make_columns([("a", run("9" * 10_000, 1, target="長" * 10_000))]))
    assert len(long) < 4000
    assert int(ElementTree.fromstring(long).attrib["width"]) < 2000


def test_a_badge_is_of_one_backend() -> None:
    several = make_columns([("a", run("1", 1)), ("b", run("1", 1, target="other"))])
    with pytest.raises(UsageError, match="2 back"):
        make_badge(several)
    with pytest.raises(UsageError, match="no check"):
        make_badge([])


@needs("jinja2", "jsonschema")
def test_the_command_writes_a_badge_with_or_without_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "1.json", run("0.1.0", 1))
    write_run(tmp_path / "2.json", run("0.2.0", 2, broken="1.1"))
    files = [str(tmp_path / name) for name in ("1.json", "2.json")]
    badge, page = tmp_path / "b.svg", tmp_path / "p.html"
    done = CliRunner().invoke(main, ["report", *files, f"--badge={badge}"])
    assert (done.exit_code, done.output) == (0, f"{badge}: a badge\n")
    assert text_of(badge.read_text()) == ["disteval: mine 0.2.0", "✗ breaks 1 of 3 rules"]
    done = CliRunner().invoke(main, ["report", *files, f"--badge={badge}", f"--html={page}"])
    assert done.output == f"{badge}: a badge\n{page}: runs: 2, benchmarks: 0\n"
    neither = CliRunner().invoke(main, ["report", *files])
    assert neither.exit_code == 2
    assert "--badge FILE" in neither.output
    # A file that an older release has written says less, and is read all the same.
    new = ("covers", "contract", "single_rank", "target_distribution", "target_version")
    write_run(tmp_path / "1.json", {k: v for k, v in run("", 1).items() if k not in new})
    done = CliRunner().invoke(main, ["report", *files[:1], f"--badge={badge}"])
    assert text_of(badge.read_text()) == ["disteval: mine", "? passes 3 rules"]
