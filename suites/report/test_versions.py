"""Checks of one backend stand side by side, the newest first, and a badge says its verdict."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from disteval import UsageError

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.reports import badge, labels, page

CONTRACT = dict.fromkeys(["1.1", "1.2", "2.1"], "required")
SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</text></title><script>ran = 1</script>'\"&amp;\u202e\x1b"


def run(version: str, day: int, broken: str = "", **more: Any) -> dict[str, Any]:
    """Return the report of a check of one version, made on that day, that may break one rule."""
    texts = dict.fromkeys(("message", "counterexample", "observed", "replay"), "")
    rules = [
        {"id": id_, "name": f"name of {id_}", "sentence": "It holds.", "level": "required",
         "world_size": size, "outcome": "failed" if id_ == broken else "passed", "examples": 1,
         "seconds": 0.5, "evidence": [], **texts}
        for id_ in CONTRACT for size in (1, 2)
    ]  # fmt: skip
    return {
        "schema_version": 1, "kind": "check", "version": "0.1.0", "verdict": "conformant",
        "covers": "is perfect", "contract": CONTRACT, "single_rank": "",
        "target": "mine", "target_distribution": "my-pkg", "target_version": version,
        "created": f"2026-11-{day:02}T12:00:00Z", "seed": 0, "examples": 5, "timeout": 20.0,
        "launcher": None, "rules": rules, **more,
    }  # fmt: skip


def text_of(badge: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(badge).iter(f"{SVG}text")]


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
    files = [(v, run(v, day)) for day, v in enumerate(versions, 1)]
    assert labels(*files) == [f"mine {version}" for version in order]


def test_checks_of_one_version_are_told_apart_by_their_files() -> None:
    files = [("a.json", run("0.1.0", 1)), ("b.json", run("0.1.0", 2))]
    assert labels(*files) == ["mine (b.json)", "mine (a.json)"]


@needs("jinja2")
def test_versions_of_a_backend_are_columns_beside_each_other() -> None:
    shown = page(("a", run("0.1.0", 1, broken="2.1")), ("b", run("0.2.0", 2)))
    said = " ".join(re.sub(r"<[^>]*>", " ", shown).split())
    for found in (
        r"is conformant: all 3 .* my-pkg 0\.2\.0",
        r"is broken: .*2\.1 \(of 3\) .* my-pkg 0\.1\.0",
        r"2\.1 name of 2\.1 ✓ pass ✓ pass ✗ FAIL ✗ FAIL",
    ):
        assert re.search(found, said), found
    assert "is perfect" not in shown  # what a file says of itself


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
        files = [("a", one) for one in runs]
        drawn, newest = badge(*files), f"mine {max(one['target_version'] for one in runs)}"
        name, said = text_of(drawn)
        assert (name, said) == (f"disteval: {newest}", text)
        assert ("#1b6a3d" in drawn) == said.startswith("✓ conformant")  # green
        [title] = ElementTree.fromstring(drawn).iter(f"{SVG}title")
        assert newest in (title.text or "")


def test_whatever_a_file_says_a_badge_is_a_picture_of_text() -> None:
    honest = badge(("a", run("0.1.0", 1)))
    evil = run(EVIL, 1) | dict.fromkeys(("target", "created", "version"), EVIL)
    for result in evil["rules"]:
        result["id"] = EVIL
    attacked = badge(("a", evil))
    tags = [
        [element.tag for element in ElementTree.fromstring(b).iter()] for b in (honest, attacked)
    ]
    assert tags[0] == tags[1]
    assert r"\u202e\x1b" in ElementTree.fromstring(attacked).attrib["aria-label"]
    long = badge(("a", run("9" * 10_000, 1, target="長" * 10_000)))
    assert len(long) < 4000
    assert int(ElementTree.fromstring(long).attrib["width"]) < 2000


def test_a_badge_is_of_one_backend() -> None:
    with pytest.raises(UsageError, match="2 back"):
        badge(("a", run("1", 1)), ("b", run("1", 1, target="other")))
    with pytest.raises(UsageError, match="no check"):
        badge()


@needs("jinja2", "jsonschema")
def test_the_command_writes_a_badge_with_or_without_a_page(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(run("0.1.0", 1)))
    (tmp_path / "2.json").write_text(json.dumps(run("0.2.0", 2, broken="1.1")))
    files = [str(tmp_path / name) for name in ("1.json", "2.json")]
    drawn, shown = tmp_path / "b.svg", tmp_path / "p.html"
    done = invoke("report", *files, f"--badge={drawn}")
    assert (done.exit_code, str(drawn) in done.output) == (0, True)
    name, said = text_of(drawn.read_text())
    assert ("mine 0.2.0" in name, "1 of 3" in said) == (True, True)
    done = invoke("report", *files, f"--badge={drawn}", f"--html={shown}")
    assert ("runs: 2" in done.output, shown.exists()) == (True, True)
    neither = invoke("report", *files)
    assert (neither.exit_code, "--badge FILE" in neither.stderr) == (2, True)
