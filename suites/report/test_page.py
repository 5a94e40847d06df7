"""A page shows the contents of runs, and never interprets their text as markup."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import check_backend, select_rules
from disteval.errors import WorldError
from disteval.world import World

from suites.helpers.needs import needs
from suites.helpers.reports import Page, outcomes, page
from suites.mutants.broken.gathered import NotWritten
from suites.report.runs import EVALUATION, FIT, TASK

pytestmark = needs("jinja2")


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    report = check_backend(NotWritten, (1, 2, 3), rules=select_rules(["1.1", "2.1"]), examples=2)
    return report.to_json()


def test_failures_of_one_cause_are_folded_and_can_all_be_linked(run: dict[str, Any]) -> None:
    text = page(("a.json", run))
    assert text.count("<h3>Likely") == 3  # two of them in folded failures
    assert len(re.findall(r"rule 2\.1 at world sizes 2 and 3", text)) >= 1
    links = re.findall(r'href="#(failure-[^"]*)"', text)
    assert [text.count(f'id="{link}"') for link in links] == [1, 1, 1]
    without = [{k: v for k, v in result.items() if k != "cause"} for result in run["rules"]]
    assert "<h3>Likely" not in page(("a.json", {**run, "rules": without}))
    told = [{**result, "usually": "it is not written"} for result in without]
    assert page(("a.json", {**run, "rules": told})).count("it is not written</p>") == 3


EVIL = "</pre></script></title>'\"><script>ran = 1</script><b onload=x>{{ 7 * 7 }}&amp;"


def test_every_text_of_a_run_is_text(run: dict[str, Any]) -> None:
    evil = json.loads(json.dumps(run))
    ours = ("target", "version", "created", "launcher", "covers", "target_version")
    evil |= dict.fromkeys((*ours, "target_distribution"), EVIL) | {"contract": {EVIL: "required"}}
    texts = ("id", "name", "sentence", "message", "counterexample", "observed", "replay", "cause")
    for result in evil["rules"]:
        result.update(dict.fromkeys(texts, EVIL))
    evaluation = EVALUATION | dict.fromkeys(("task", "backend", "device", "framework"), EVIL)
    evaluation |= {"metrics": {EVIL: 0.5}, "coverage": EVIL}
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
    honest = Page(page(*files))
    attacked = Page(page(*((EVIL, one) for one in (evil, evil, evaluation, training, task))))
    assert re.search("rank 1: .*SIGKILL", " ".join("".join(honest.texts).split()))
    assert set(attacked.tags) == set(honest.tags)
    assert attacked.tags.count("script") == attacked.tags.count("style") == 1
    assert {name for name, _ in attacked.attributes} <= {name for name, _ in honest.attributes}
    assert "".join(attacked.texts).count(EVIL) > 20


def test_what_can_not_be_written_is_written_as_python_would(run: dict[str, Any]) -> None:
    other = json.loads(json.dumps(run))
    other["target"] = "half \ud800, back \u202e, escape \x1b"
    text = page(("a.json", other))
    text.encode("utf-8")
    for written in (r"half \ud800", r"back \u202e", r"escape \x1b"):
        assert written in text


def test_the_policy_allows_one_style_and_one_script_and_nothing_else(run: dict[str, Any]) -> None:
    text = page(("a.json", run))
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    allowed = []
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed.append(f"{tag}-src 'sha256-{digest}'")
    nowhere = "default-src 'none'; {}; {}; img-src data:; base-uri 'none'; form-action 'none'"
    assert policy == nowhere.format(*allowed)
    for loads in ("<link", "<img", "<iframe", r"https?://(?!www\.w3)", r"url\((?!#)", "@import"):
        assert not re.search(loads, text)


def test_a_rule_that_one_check_left_out_is_an_empty_cell(run: dict[str, Any]) -> None:
    fewer = run | {"rules": [r for r in run["rules"] if r["id"] == "1.1"]}
    assert outcomes(("a.json", fewer), ("b.json", run)) == {
        "1.1": ["passed"] * 6,
        "2.1": [None] * 3 + ["failed"] * 3,
    }


def test_rules_are_in_the_contracts_order(run: dict[str, Any]) -> None:
    [first, *_] = run["rules"]
    rules = [first | {"id": number} for number in ("10.1", "2.10", "2.9", "x", "1.1")]
    assert [*outcomes(("a.json", run | {"rules": rules}))] == ["x", "1.1", "2.9", "2.10", "10.1"]


@needs("matplotlib")
def test_a_training_is_shown_with_its_epochs_and_best() -> None:
    alone = FIT | {"records": [], "best": None}
    shown = Page(page(("long.json", FIT), ("none.json", alone)))
    said = " ".join(" ".join(shown.texts).split())
    for found in ("epoch 2: 6 of 8", "long.json: 4 rows", r"1 val not .* 2 of 8", "1.25 0.03125"):
        assert re.search(found, said), found
    assert ("not validated" in said, "none.json: " in said) == (True, False)


def test_a_task_is_shown_with_metrics_coverage_and_speed() -> None:
    said = " ".join(" ".join(Page(page(("a.json", TASK))).texts).split())
    for found in (
        "my_task:task file a.json", "coverage exact", "ranks 3", "samples/s 100", "loss mean 0.5",
        "loss worst none", "0 1 2 1 3 4",
    ):  # fmt: skip
        assert found in said, found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compared": 3}, "coverage by index, contents of 3 of 10 samples compared digest"),
        ({"repeatable": False}, "coverage by index, for samples or outputs are random digest"),
        ({"repeatable": False}, "model some samples, or the outputs of predict for them, were oth"),
        ({"difference": 2**-9}, "model outputs of ranks differ by up to 0.00195 for the same samp"),
    ],
)
def test_what_was_not_proved_is_said(changed: dict[str, Any], said: str) -> None:
    run = TASK | {"coverage": "by index"} | changed
    assert said in " ".join(" ".join(Page(page(("a.json", run))).texts).split())
    assert "model" not in " ".join(Page(page(("a.json", TASK))).texts)


def test_evaluations_of_one_task_stand_side_by_side_and_differences_are_marked() -> None:
    last_bit = json.loads(json.dumps(TASK).replace("0.5", repr(0.5 + 2**-53)))
    names = ["mean ✓ equal", "mean ✗ differs", "confusion ✓ equal", "digest ✓ equal"]
    for other, marked in ((TASK, [1, 0, 1, 1]), (last_bit, [0, 1, 1, 1])):
        said = " ".join(" ".join(Page(page(("a.json", TASK), ("b.json", other))).texts).split())
        assert [said.count(name) for name in names] == marked
    assert "0.5000000000000001" in said  # all digits, where fewer would look the same
    other = TASK | {"digest": "0" * 16, "metrics": {}, "command": "disteval eval x", "version": "9"}
    said = " ".join(" ".join(Page(page(("a.json", TASK), ("b.json", other))).texts).split())
    for found in (
        "digest ✗ differs",
        "mean ✗ differs 0.5 missing",
        "disteval eval x",
        "disteval 9",
    ):
        assert found in said, found


def test_all_values_of_a_metric_are_compared_also_those_that_are_not_drawn() -> None:
    many = [0] * 500
    groups = {f"group {i}": {"mean": 0.5, "all": [*many, 1]} for i in range(150)}
    one = TASK | {"metrics": {"of": groups}}
    sides: list[tuple[str, Any, int]] = [("mean", 0.25, 1), ("all", [*many, 2], 1)]
    for name, other, rows in (*sides, ("all", {"0": 1}, 2), ("mean", None, 1), ("", None, 0)):
        last = groups["group 149"] | ({name: other} if name else {})
        changed = TASK | {"metrics": {"of": groups | {"group 149": last}}}
        text = page(("a.json", one), ("b.json", changed))
        said = " ".join(" ".join(Page(text).texts).split())
        assert said.count("✗ differs") == text.count('"text failed"') == rows, said[-3000:]
        assert f"of … ✓ equal {200 - (rows > 0)} more values" in said
        assert (f"group 149 {name} ✗ differs" in said) == bool(name)
        assert ("0, 0, 2] " in said) == (other == [*many, 2])
    del last["mean"]
    changed = TASK | {"metrics": {"of": groups | {"group 149": last}}}
    said = " ".join(" ".join(Page(page(("", one), ("", changed))).texts).split())
    assert "mean ✗ differs 0.5 missing" in said


def test_an_accuracy_that_was_edited_is_marked() -> None:
    accuracy = EVALUATION["metrics"]["accuracy"]
    edited = EVALUATION | {"metrics": {"accuracy": accuracy | {"top1": 0.5}}}
    said = " ".join(" ".join(Page(page(("a.json", EVALUATION), ("b.json", edited))).texts).split())
    assert "accuracy top1 ✗ differs" in said and "0.5 is not 6 of 8" in said


def test_each_reason_is_told_once() -> None:
    rules = select_rules(["7.1", "9.*"])
    report = check_backend("threads", (1, 2), rules=rules, examples=2)
    said = " ".join(" ".join(Page(page(("a.json", report.to_json()))).texts).split())
    for where in (
        "rule 7.1 at world size 1 ",
        "rules 9.1-9.3 at world sizes 1 and 2",
        "7.1 at world size 2",
    ):
        assert said.count(where) == 1, where


def _meet(backend: Any, alone: bool) -> None:
    """Let all ranks but one wait for the missing one, or fail together."""
    if not alone:
        backend.all_gather_object(0)
    raise LookupError(f"stack of rank {backend.rank}:\n  not really")


@pytest.mark.parametrize(
    ("alone", "titles"),
    [
        ((False, True), ["stack of rank 0", "traceback of rank 1"]),
        ((True, True), ["traceback of rank 0", "traceback of rank 1"]),
    ],
)
def test_what_each_rank_was_doing_is_taken_apart(
    run: dict[str, Any], alone: tuple[bool, bool], titles: list[str]
) -> None:
    with World("threads", 2, timeout=4) as world, pytest.raises(WorldError) as caught:
        world.run(_meet, *alone)
    failed = [r for r in run["rules"] if r["outcome"] == "failed"][:1]
    told = {"message": caught.value.summary, "evidence": caught.value.evidence}
    other = run | {"rules": [failed[0] | told]}
    texts = [text.strip() for text in Page(page(("a.json", other))).texts]
    assert sorted(text for text in texts if text in titles) == titles
    assert any("in _meet" in text for text in texts)
    whole = run | {"rules": [failed[0] | {"message": "rank 0 got 1\n  instead of 2"}]}
    assert "instead of 2" in page(("a.json", whole))


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
