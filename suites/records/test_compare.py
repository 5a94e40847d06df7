"""Runs are compared pair by pair, by tests of paired data, and no record is dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import comb, erfc, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.metrics import Bootstrap, Mean
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.command import invoke
from suites.helpers.needs import framework, needs

pytestmark = needs("polars", "jinja2")

pl = framework("polars")
comparing = framework("disteval.records.compare")
table = framework("disteval.records.table")

TEXTS = ("answer", "prompt", "content", "target", "group", "cluster")
BOTH = [(0, 1)] * 30 + [(1, 0)] * 12 + [(1, 1)] * 110 + [(0, 0)] * 68
"""Scores of lm-evaluation-harness's pull request 3868; 110 right in both give its unpaired p."""


def records(rows: Sequence[dict[str, Any]], **more: Any) -> Any:
    """Return the records of a run, each with the id and score given, and texts where given."""
    columns = {
        "id": table.keyed(pl.Series([row["id"] for row in rows], dtype=pl.String)),
        "score": pl.Series([row["score"] for row in rows], dtype=pl.Float64),
        "fate": ["unscored" if row["score"] is None else "scored" for row in rows],
        **{name: pl.Series([row.get(name) for row in rows], dtype=pl.String) for name in TEXTS},
        "weight": pl.Series([None] * len(rows), dtype=pl.Float64),
        "file": [0] * len(rows),
        "line": range(1, len(rows) + 1),
    }
    return table.Records(frame=pl.DataFrame(columns), harness="", files=("a.jsonl",), **more)


def of_scores(*scores: float | None) -> Any:
    return records([{"id": str(i), "score": score} for i, score in enumerate(scores)])


def files(folder: Path, *runs: Sequence[dict[str, Any]]) -> list[str]:
    """Write the records of runs as JSON lines, and return what names them to the command."""
    paths = [folder / f"{i}.jsonl" for i in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in run))
    return [*map(str, paths), "--id=id", "--score=score"]


def test_the_example_of_pull_request_3868_is_computed_again() -> None:
    first, second = (np.array(scores, float) for scores in zip(*BOTH, strict=True))
    found = comparing.measure(first, second)
    assert f"{found.p:.3f}" == "0.008"
    variance = sum(float(scores.var(ddof=1)) / 220 for scores in (first, second))
    unpaired = erfc(found.difference / sqrt(variance) / sqrt(2))
    assert f"{unpaired:.3f}" == "0.080"
    # M. Fagerland et al., "The McNemar test for binary matched-pairs data" (2013), table 1
    before, after = np.repeat([1.0, 0.0], [2, 19]), np.repeat([1.0, 0.0, 1.0, 0.0], [1, 1, 7, 12])
    assert comparing.measure(before, after).p == pytest.approx(2 * (1 + 8) / 2**8)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_mc_nemar_is_the_binomial_of_wins_and_losses(wins: int, losses: int, ties: int) -> None:
    first = np.repeat([0.0, 1.0, 1.0], [wins, losses, ties])
    second = np.repeat([1.0, 0.0, 1.0], [wins, losses, ties])
    n = wins + losses
    closed = 2 * sum(comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    assert comparing.measure(first, second).p == pytest.approx(min(1.0, closed))


def test_a_clustered_standard_error_sums_within_clusters() -> None:
    differences = np.array([1.0, 1.0, 0.0, -1.0])
    assert comparing.measure(np.zeros(4), differences).error == pytest.approx(0.9574271 / 2)
    both = comparing.measure(np.zeros(4), differences, np.array([0, 0, 1, 1]))
    assert both.error == pytest.approx(0.75)  # sqrt(2 / 1 * (1.5**2 + 1.5**2)) / 4
    # 1.95996 and 0.84162 are the normal quantiles of 0.975 and 0.8
    assert both.detectable == pytest.approx((1.95996 + 0.84162) * 0.75, rel=1e-5)


def test_copies_of_samples_in_clusters_show_nothing_more() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 2, (2, 40)).astype(float)
    second[:8] = 1.0
    once = comparing.measure(first, second, np.arange(40))
    copies = [np.repeat(each, 9) for each in (first, second, np.arange(40))]
    clustered, blind = comparing.measure(*copies), comparing.measure(*copies[:2])
    for name in ("p", "error", "low", "high", "difference"):
        assert getattr(clustered, name) == pytest.approx(getattr(once, name), abs=1e-9)
    assert blind.p < clustered.p / 2
    assert blind.high - blind.low < (clustered.high - clustered.low) / 2


def test_the_interval_is_that_of_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    difference = np.random.default_rng(2).normal(0.1, 1, 300)
    metric = Bootstrap(Mean(dist_backend="non_dist"))
    metric.add(difference, ids=np.arange(300))
    found = comparing.measure(np.zeros(300), difference)
    expected = metric.compute()["mean"]
    assert (found.low, found.high) == pytest.approx((expected["low"], expected["high"]), abs=1e-8)
    monkeypatch.setattr(comparing, "MOST_RESAMPLED", 299)
    large = comparing.measure(np.zeros(300), difference)
    assert large.high - large.difference == pytest.approx(1.95996 * large.error, rel=1e-5)


def test_wilcoxon_is_exact_for_few_ties_are_blind_to_rounding_and_holm_steps_down() -> None:
    first = np.array([0.1, 0.5, 0.25, 0.3, 0.0])
    found = comparing.measure(first, first + np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    assert (found.test, found.p) == ("Wilcoxon", 2 / 2**5)
    assert comparing.measure(np.array([0.3, 0.5]), np.array([0.1 + 0.2, 0.5])).ties == 2
    assert comparing.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


SCORES = st.sampled_from([None, 0.0, 1.0, 0.5, 0.1, 0.3])
IDS = st.text("ab1", min_size=1, max_size=3)


@given(st.dictionaries(IDS, st.tuples(SCORES, SCORES), max_size=9), st.randoms())
@settings(max_examples=8, deadline=None)
def test_neither_the_order_of_records_nor_that_of_runs_changes_anything(
    scores: dict[str, tuple[float | None, float | None]], random: Any
) -> None:
    scores |= {"x": (0.0, 1.0), "y": (1.0, 0.5)}
    runs = [[{"id": i, "score": pair[run]} for i, pair in scores.items()] for run in (0, 1)]

    def compared(*runs: Any) -> Any:
        [found] = comparing.compare([("", records(run)) for run in runs])
        return found

    straight, back = compared(*runs), compared(*reversed(runs))
    for run in runs:
        random.shuffle(run)
    assert compared(*runs).to_json() == straight.to_json()
    for one, other in zip(straight.outcomes, back.outcomes, strict=True):
        assert (one.wins, one.losses, one.p) == (other.losses, other.wins, other.p)
        assert one.difference == pytest.approx(-other.difference)


def test_records_without_a_score_are_counted_by_each_policy() -> None:
    a, b = of_scores(1, 1, 0, 0, 1, None), of_scores(1, None, 1, 0, 1, None)
    [found] = comparing.compare([("a", a), ("b", b)])
    left_out, as_zero = found.outcomes
    assert (left_out.pairs, left_out.of, left_out.first, left_out.second) == (4, 6, 0.5, 0.75)
    assert (as_zero.pairs, as_zero.losses, as_zero.first, as_zero.second) == (6, 1, 0.5, 0.5)
    [found] = comparing.compare([("a", of_scores(-1, -2, None)), ("b", of_scores(-2, -3, -3))])
    assert [each.policy for each in found.outcomes] == ["left out"]


def test_what_can_not_be_paired_is_refused(tmp_path: Path) -> None:
    twice = ("1 ids more than once", "'x'", "0.jsonl:1", "disteval verify")
    for a, b, *said in (("xy", "vw", "no id in common", "'x'", "'v'"), ("xyx", "x", *twice)):
        runs = [[{"id": id_, "score": 1} for id_ in ids] for ids in (a, b)]
        done = invoke("compare", *files(tmp_path, *runs))
        assert (done.exit_code, [each in done.stderr for each in said]) == (2, [True] * len(said))


def test_numbers_of_one_run_are_paired_with_the_texts_of_another() -> None:
    a, b = ([{"id": id_, "score": i} for i, id_ in enumerate(ids)]
            for ids in (("-2", "3", "-10"), ("-2", "3", "-10", "x")))  # fmt: skip
    [found] = comparing.compare([("a", records(a)), ("b", records(b))])
    assert (found.outcomes[0].ties, found.only) == (3, ([], ["x"]))


def test_what_else_differs_is_said() -> None:
    rows = [{"id": str(i), "score": 1, "prompt": "p", "target": "t"} for i in range(12)]
    others = [rows[0] | {"prompt": "q"}, rows[10] | {"target": "u"}, {"id": "new", "score": 0}]
    a = records(rows, metric="acc", settings={"limit": "12"})
    [found] = comparing.compare([("a", a), ("b", records(others, metric="f1"))])
    said = "\n".join(found.notes)
    for words in (
        "10 ids are in a alone: '1', '2', '3', '4', '5', …", "1 ids are in b alone: 'new'",
        "score differs: 'acc' and 'f1'", "limit differs: '12' and 'not stated'",
        "1 of 2 pairs have another prompt in b: '0'", "1 of 2 pairs have another target in b: '10'",
    ):  # fmt: skip
        assert words in said


@pytest.mark.parametrize(
    ("first", "second", "kind", "where"),
    [
        ("-3.21887", "-3.21891", "rounding", "'-3.21887' / '-3.21891', digit 5"),
        ("1000 apples", "1001 apples", "content", "digit 4"),  # whole numbers are exact
        ("A, C\nB", "B\nA, C", "order", "character 1, token 1: 'A' / 'B'"),
        ("yes", "yes, it is", "content", "character 4, token 2: 'the end' / ','"),
        (None, "yes", "content", "no answer"),
    ],
)  # fmt: skip
def test_where_two_answers_part(first: str, second: str, kind: str, where: str) -> None:
    same = {"fate": "scored", "fate_b": "scored", "score": 1.0, "score_b": 1.0}
    found = comparing.parting_of({"answer": first, "answer_b": second, **same})
    assert found["kind"] == kind
    assert where in found["where"]


def test_runs_that_must_be_the_same(tmp_path: Path) -> None:
    run = [{"id": i, "score": 1, "answer": f"it is {i}"} for i in range(30)]
    done = invoke("compare", *files(tmp_path, run, run[::-1]), "--same")
    assert (done.exit_code, "all 30 pairs have equal answers" in done.stdout) == (0, True), done
    alike = [[{"id": i, "score": score, "answer": [1.0, "é"]} for i, score in enumerate(scores)]
             for scores in ((1, 1), (1, True))]  # fmt: skip
    assert invoke("compare", *files(tmp_path, *alike), "--same").exit_code == 0
    other = [*run[:29], run[29] | {"answer": "it is 28"}]
    for second, said in ((other, "1 of 30 pairs differ: 1 of content"), (run[1:], "1 ids are in")):
        done = invoke("compare", *files(tmp_path, run, second), "--same")
        assert (done.exit_code, said in done.stdout) == (1, True), done
    for models, is_same in (("mm", True), ("mn", False)):
        runs = [("", records([{"id": "1", "score": 1}], settings={"model": m})) for m in models]
        assert comparing.compare(runs)[0].same_model == is_same
    without = [[row | {"score": None} for row in one] for one in (run, other)]
    for words, status in ((["--same"], 1), ([], 2)):  # answers alone
        assert invoke("compare", *files(tmp_path, *without), *words).exit_code == status


def test_the_command_has_a_table_and_a_file(tmp_path: Path) -> None:
    pairs = [*enumerate(BOTH)]
    runs = [
        [{"id": i, "score": both[run], "of": {"x": i % 2}, "doc": i // 2} for i, both in pairs]
        for run in (0, 1)
    ]
    written = tmp_path / "found.json"
    done = invoke("compare", *files(tmp_path, *runs, runs[0]), "--group=of.x", f"--json={written}")
    for words in ("220 of 220", "30, 12, 178", "after Holm 0.01583", "is better", "110 of 110"):
        assert words in done.stdout
    first, second = json.loads(written.read_text())["comparisons"]
    assert (len(first["wins"]), len(first["losses"]), second["wins"]) == (30, 12, [])
    page = tmp_path / "page.html"
    assert "compare writes the page" in invoke("report", str(written), f"--html={page}").stderr
    done = invoke("compare", *files(tmp_path, *runs), "--cluster=doc", f"--html={page}")
    assert (done.exit_code, "Wilcoxon, 110 clusters" in done.stdout) == (0, True), done
    [found] = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert [row[2] for row in found["rows"]] == ["loss"] * 12 + ["win"] * 30
    assert found["total"] == 42
