"""A page shows the contents of runs, and never interprets their text as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.runner import check_backend, select_rules
from disteval.errors import WorldError
from disteval.report import model
from disteval.report.page import render
from disteval.text import visible
from disteval.worlds import World
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.mutants.broken.gathered import ReversedOrder
from suites.report.runs import EVALUATION, FIT, TASK

pytestmark = needs("jinja2")


class Page(HTMLParser):
    """The elements of a page that a browser would see, with attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    report = check_backend(ReversedOrder, (1, 2, 3), rules=select_rules(["1.1", "2.1"]), examples=2)
    return report.to_json()


def test_failures_of_one_cause_are_folded_and_can_all_be_linked(run: dict[str, Any]) -> None:
    text = render([("a.json", run)])
    assert text.count("<h3>Likely cause</h3>") == 2  # one of them in the folded failure
    assert text.count("The same cause breaks 2.1 (W=3)") == 1
    links = re.findall(r'href="#(failure-[^"]*)"', text)
    assert [text.count(f'id="{link}"') for link in links] == [1, 1]
    older = {**run, "rules": [{k: v for k, v in r.items() if k != "cause"} for r in run["rules"]]}
    assert "Likely cause" not in render([("a.json", older)])


EVIL = "</pre></script></title>'\"><script>ran = 1</script><b onload=x>{{ 7 * 7 }}&amp;"


def test_every_text_of_a_run_is_text(run: dict[str, Any]) -> None:
    evil = json.loads(json.dumps(run))
    ours = ("target", "version", "created", "launcher", "covers", "target_version")
    evil |= dict.fromkeys((*ours, "target_distribution"), EVIL) | {"contract": {EVIL: "required"}}
    texts = ("id", "name", "sentence", "message", "counterexample", "observed", "replay", "cause")
    for result in evil["rules"]:
        result.update(dict.fromkeys(texts, EVIL))
    evaluation = EVALUATION | dict.fromkeys(("dataset", "backend", "device", "coverage"), EVIL)
    evaluation |= {"accuracy": {EVIL: 0.5}, "framework": EVIL}
    task = TASK | dict.fromkeys(("task", "backend", "coverage", "predictions"), EVIL)
    task |= {"metrics": {EVIL: {EVIL: [[EVIL]], "text": EVIL}}}
    task |= {"leases": TASK["leases"] | {"lost": [{"rank": 1, "how": EVIL}]}}
    training = FIT | dict.fromkeys(("launcher", "data"), EVIL)
    files = [
        ("a.json", run),
        ("of another version", run),
        ("b.json", EVALUATION),
        ("c.json", FIT),
        ("d.json", TASK),
    ]
    honest = Page(render(files))
    page = Page(
        render([(EVIL, evil), (EVIL, evil), (EVIL, evaluation), (EVIL, training), (EVIL, task)])
    )
    assert "rank 1: killed by SIGKILL" in " ".join("".join(honest.texts).split())
    assert set(page.tags) == set(honest.tags)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert {name for name, _ in page.attributes} <= {name for name, _ in honest.attributes}
    assert "".join(page.texts).count(EVIL) > 20


@given(st.text())
def test_all_of_a_text_can_be_seen(text: str) -> None:
    shown = visible(text, keep="")
    assert shown.isprintable()
    assert visible(shown) == shown
    assert (shown == text) == text.isprintable()


def test_what_can_not_be_written_is_written_as_python_would(run: dict[str, Any]) -> None:
    other = json.loads(json.dumps(run))
    other["target"] = "half \ud800, back \u202e, escape \x1b"
    text = render([("a.json", other)])
    text.encode("utf-8")
    assert r"half \ud800, back \u202e, escape \x1b" in text


def test_the_policy_allows_one_style_and_one_script_and_nothing_else(run: dict[str, Any]) -> None:
    text = render([("a.json", run)])
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    allowed = []
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed.append(f"{tag}-src 'sha256-{digest}'")
    nowhere = "default-src 'none'; {}; {}; base-uri 'none'; form-action 'none'"
    assert policy == nowhere.format(*allowed)
    assert not re.search(r"<link|<img|<iframe|https?://(?!www\.w3\.org)|url\((?!#)|@import", text)


def test_two_checks_of_one_backend_are_told_apart_by_their_files(run: dict[str, Any]) -> None:
    columns = model.make_columns([("a.json", run), ("b.json", run)])
    assert [c.label for c in columns] == ["ReversedOrder (a.json)", "ReversedOrder (b.json)"]


def test_a_rule_that_one_check_left_out_is_an_empty_cell(run: dict[str, Any]) -> None:
    fewer = run | {"rules": [r for r in run["rules"] if r["id"] == "1.1"]}
    rows = model.make_rows(model.make_columns([("a.json", fewer), ("b.json", run)]))
    outcomes = {row.id: [c.result and c.result["outcome"] for c in row.cells] for row in rows}
    assert outcomes == {
        "1.1": ["passed"] * 6,
        "2.1": [None, None, None, "passed", "failed", "failed"],
    }


def test_rules_are_in_the_contracts_order(run: dict[str, Any]) -> None:
    [first, *_] = run["rules"]
    rules = [first | {"id": number} for number in ("10.1", "2.10", "2.9", "x", "1.1")]
    rows = model.make_rows(model.make_columns([("a.json", run | {"rules": rules})]))
    assert [row.id for row in rows] == ["x", "1.1", "2.9", "2.10", "10.1"]


@needs("matplotlib")
def test_a_training_is_shown_with_its_epochs_and_best() -> None:
    alone = FIT | {"records": [], "best": None}
    said = " ".join(
        " ".join(Page(render([("long.json", FIT), ("none.json", alone)])).texts).split()
    )
    assert "epoch 2: 6 of 8" in said
    assert "long.json: 4 rows as a table" in said
    assert "1 val not finite 2 of 8" in said
    assert "2 train 1.25 0.03125" in said
    assert "not validated" in said
    assert "none.json: " not in said


def test_a_task_is_shown_with_metrics_coverage_speed_and_ranks() -> None:
    said = " ".join(" ".join(Page(render([("a.json", TASK)])).texts).split())
    assert "my_task:task a.json" in said
    assert "threads 3 10 of 10 exact, each once" in said
    assert "2 4 100 0.1 out" in said
    assert "loss mean 0.5 loss worst not a finite number" in said
    assert "confusion: 2 rows 0 1 2 1 3 4" in said
    assert "Samples and seconds of each rank rank samples seconds 0 4 0.1 1 4 0.1 2 4 0.1" in said


def test_each_reason_is_told_once() -> None:
    rules = select_rules(["7.1", "9.*"])
    report = check_backend("threads", (1, 2), rules=rules, examples=2)
    found = model.reasons(model.make_columns([("a.json", report.to_json())]))
    assert [(reason.text, reason.where) for reason in found] == [
        ("ranks are lost only at world sizes 2 and 3", ["7.1 at W=1"]),
        ("the backend is not a subclass of TensorBaseDistBackend", ["9.1, 9.2, 9.3 at W=1, W=2"]),
        ("not every rank is a separate process, which could be lost", ["7.1 at W=2"]),
    ]


def _meet(backend: Any, alone: bool) -> None:
    """Let all ranks but one wait for the missing one."""
    if not alone:
        backend.all_gather_object(0)


def _fail(backend: Any) -> None:
    raise LookupError(f"stack of rank {backend.rank}:\n  not really")


def test_what_each_rank_was_doing_is_taken_apart() -> None:
    with World("threads", 2, timeout=4) as world, pytest.raises(WorldError) as caught:
        world.run(_meet, False, True)
    story, parts = model.evidence(str(caught.value))
    assert "rank 0: waits in all_gather_object #1" in story
    assert "stack" not in story
    assert parts[0][0] == "stack of rank 0"
    assert parts[0][1].startswith("main thread (innermost call first):\n  File ")
    assert "in _meet" in parts[0][1]


def test_an_error_of_ranks_is_taken_apart() -> None:
    with World("threads", 2) as world, pytest.raises(WorldError) as caught:
        world.run(_fail)
    story, parts = model.evidence(str(caught.value))
    assert [title for title, _ in parts] == ["traceback of rank 0", "traceback of rank 1"]
    for rank, (_, text) in enumerate(parts):
        assert text.startswith("Traceback (most recent call last)")
        assert text.endswith(f"LookupError: stack of rank {rank}:\n  not really")
        assert f"rank {rank}: raised LookupError: stack of rank {rank}:" in story


@pytest.mark.parametrize("text", ["", "rank 0 got 1\n  instead of 2", "stack of rank 0:"])
def test_another_message_is_left_whole(text: str) -> None:
    assert model.evidence(text) == (text, [])


def test_a_library_that_is_missing_is_named_before_anything_runs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from disteval.cli import main\n"
        "main(['check', 'threads', '--html=r.html'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--html" in done.stderr
    assert "'.[report]'" in done.stderr
