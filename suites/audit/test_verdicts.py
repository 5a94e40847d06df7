"""An audit says what it could not judge, and why, instead of calling a function sound."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval.audit import Audit, AuditError, Case, audit

from suites.audit.parts import WRONG, batches, gathered, padded, rights, strided
from suites.audit.right import stream_by_position, sums_of_integers
from suites.audit.wrong import counts_padding, fills_the_last_batch_with_zeros
from suites.helpers.audits import audited, first_finding
from suites.helpers.command import invoke
from suites.helpers.needs import framework, needs
from suites.helpers.processes import run_plainly


class Evaluation:
    """An evaluation that is an object and has no name of its own."""

    def __call__(self, case: Case, factor: float = 1.0) -> Any:
        return {"accuracy": factor * sums_of_integers(case)["accuracy"]}


@pytest.mark.parametrize(
    ("loop", "options", "verdict", "told"),
    [
        (partial(Evaluation(), factor=1.0), {}, "sound", ""),
        (partial(Evaluation(), factor=100.0), {}, "not judged", "accuracy is 100"),
        (lambda case: {"f1": 1 / len(case.dataset)}, {}, "not judged", "f1 is the same"),
        (sums_of_integers, {"seconds": 1e-9}, "not judged", "1e-09 s"),
        (lambda case: [label for _, label in case.dataset], {}, "not judged", "are dicts"),
    ],
)
def test_what_proves_nothing_is_not_sound(
    loop: Any, options: dict[str, Any], verdict: str, told: str
) -> None:
    report = Audit(loop, (1, 2), backend="threads", **options).run()
    assert (report.verdict, told in report.reason) == (verdict, True), report.reason
    assert report.exit_code == {"sound": 0, "not judged": 2}[verdict]


def assumes(*names: str) -> Any:
    def evaluate(case: Case) -> Any:
        return sums_of_integers(case)

    evaluate.assumes = names  # type: ignore[attr-defined]
    return evaluate


def test_a_function_that_assumes_every_case_away_is_not_judged() -> None:
    report = Audit(assumes("one_rank"), (2, 3), backend="threads").run()
    assert (report.verdict, report.exit_code, len(report.cases)) == ("not judged", 2, 0)


def crashes_with_one_sample(case: Case) -> Any:
    if len(case.dataset) == 1:
        raise ValueError("one is too few")
    return sums_of_integers(case)


@pytest.mark.parametrize("how", [{"first": True}, {"case": "N=1,B=1,W=1"}, {}])
def test_a_crash_of_the_first_case_is_a_finding(how: dict[str, Any]) -> None:
    report = audited(crashes_with_one_sample, (1, 2), backend="threads", **how)
    assert first_finding(report) == ("crashes", "N=1,B=1,W=1")
    assert "rank 0 raised" in report.findings[0].sentence


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--case=N=3,B=1,W=3", "--world-size=1,2"], ("3, and", "1, 2")),
        (["--case=N=3,B=1,W=2,lost=2"], ("lost=2", "number of a job")),
        (["--case=N=3,B=1,W=2,lost=1"], ("no merge", "leave lost=1 out")),
    ],
)
def test_a_case_that_can_t_be_tried_is_refused(options: list[str], told: tuple[str, ...]) -> None:
    found = invoke("audit", "suites.audit.right:sums_of_integers", "--backend=threads", *options)
    assert found.exit_code == 2
    assert [part for part in told if part not in " ".join(found.output.split())] == []


def unknown(case: Case) -> Any:
    return sums_of_integers(case) | {"f1": 0.5, "auc": float("nan")}


def in_training(case: Case) -> Any:
    case.module().train(case.shuffle)(framework("torch").zeros(1, 8))
    return sums_of_integers(case)


@pytest.mark.parametrize(
    ("loop", "case", "told"),
    [
        (unknown, "", ("f1 is 0.5", "auc")),
        (assumes("even"), "N=3,B=1,W=2", ("divisible",)),
        (stream_by_position, "", ("N=2,B=1,W=2",)),
        (lambda case: sums_of_integers(case)["accuracy"], "", ("result",)),
        pytest.param(in_training, "", ("N=4,B=2,W=1,shuffle",), marks=needs("torch")),
    ],
    ids=["nothing to compare", "assumed away", "no faster", "no truth", "training mode"],
)
def test_what_is_no_error_is_noted(loop: Any, case: str, told: tuple[str, ...]) -> None:
    report = audited(loop, (1, 2), backend="threads", case=case)
    assert report.verdict == "sound"
    noted = [each for each in report.warnings if "N=1025" not in each]  # on a busy machine
    assert len(noted) == len(told)
    for warning, part in zip(noted, told, strict=True):
        assert part in warning


@pytest.mark.parametrize(("drop_last", "verdict"), [(False, "sound"), (True, "wrong")])
def test_reading_samples_to_write_them_first_is_not_told_of(drop_last: bool, verdict: str) -> None:
    def evaluate(case: Case) -> Any:
        file = [sample["id"] for sample in case.samples()]
        end = len(file) - len(file) % case.world_size if drop_last else len(file)
        own = gathered(file[case.rank : end : case.world_size])
        return {"ids": [i for ids in own for i in ids]}

    report = Audit(evaluate, (1, 2), backend="threads", first=True).run()
    noted = [each for each in report.warnings if "N=1025" not in each]  # on a busy machine
    assert (report.verdict, noted) == (verdict, [])
    assert "fetched" not in " ".join(map(str, report.findings))


def test_weights_are_measured_once_for_each_sample_and_for_none() -> None:
    report = Audit(counts_padding, (1, 2), backend="threads").run()
    assert report.counts["wrong"] > 10
    measured = [finding for finding in report.findings if finding.weights]
    assert measured == report.findings[:1]
    assert measured[0].weights == (0.5, 0.25, 0.25)
    assert measured[0].fair == pytest.approx((1 / 3,) * 3)


def test_weights_are_not_measured_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disteval.audit.weights._MOST_SECONDS", 0.0)

    def evaluate(case: Case) -> Any:
        return counts_padding(case) if len(case.dataset) > 20 else sums_of_integers(case)

    found = Audit(evaluate, (2,), backend="threads", first=True).run().findings[0]
    assert (found.weights, found.kind) == ((), "weighted wrongly")
    replayed = Audit(evaluate, backend="threads", only=found.settings).run().findings[0]
    assert (len(replayed.weights), replayed.kind) == (found.settings.size, "counted twice")


def test_another_defect_of_the_same_result_is_found() -> None:
    def evaluate(case: Case) -> Any:
        indices = padded(case)[: 10**6 if case.batch_size > 1 else 1]
        return {"count": sum(gathered(len(indices)))}

    report = Audit(evaluate, (2,), backend="threads").run()
    assert [found.kind for found in report.findings] == ["counted twice", "dropped"]


def test_parts_that_are_whole_once_they_have_a_name_are_not_truncated() -> None:
    job: Any = WRONG["writes_line_by_line"][0]

    def evaluate(case: Case) -> Any:
        return job(case)

    evaluate.merge, evaluate.assumes = job.merge, ("whole_parts",)  # type: ignore[attr-defined]
    report = Audit(evaluate, (2,), backend="threads").run()
    assert report.verdict == "sound"
    assert {case.damage for case in report.cases} == {"", "lost", "repeated"}


_called: list[int] = []


def notes_sizes(case: Case) -> Any:
    _called.append(len(case.dataset))
    return sums_of_integers(case)


def test_each_case_is_begun_before_larger_ones_are_ended() -> None:
    _called.clear()  # a defect is found early, also one whose smallest case is among the last
    Audit(notes_sizes, (1,), backend="threads").run()
    assert _called.index(max(_called)) < 0.6 * len(_called)


def test_what_a_script_defines_is_replayed_in_python(tmp_path: Path) -> None:
    lines = [
        "from disteval.audit import Audit",
        "def evaluate(case): return {'count': len(case.dataset) + 1}",
        "for function in (evaluate, lambda case: evaluate(case)):",
        "    print(Audit(function, (1,), 'threads', first=True).run().findings[0].replay)",
    ]
    (tmp_path / "script.py").write_text("\n".join(lines))
    found = run_plainly([sys.executable, "script.py"], tmp_path, 60.0)
    call = "disteval.audit.audit(evaluate, case='N=1,B=1,W=1', backend='threads')"
    assert found.stdout.splitlines() == [call, call], found.stderr
    with pytest.raises(AuditError, match="2 instead of 1"):
        audit(lambda case: {"count": 2}, case="N=1,B=1,W=1", backend="threads")


def _among_first(case: Case, k: int) -> list[bool]:
    """Return whether the label is among the k best scores, of which all but one are equal."""
    best = [np.argsort(-case.predict(s["x"][None])[0], kind="stable")[:k] for s in case.dataset]
    return [s["label"] in some for s, some in zip(case.dataset, best, strict=True)]


def _of_low_classes(case: Case) -> list[int]:
    return rights(case, [s for s in case.dataset if s["label"] < 10])


def counts_once_and_divides_wrongly(case: Case) -> Any:
    own = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    means = [sum(part) / len(part) for part in gathered(own) if part]
    return {"mean": sum(means) / len(means), "count": sum(map(len, gathered(own)))}


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (lambda case: {"mean": 7.0}, ("7",)),
        (
            lambda case: {"accuracy": round(sums_of_integers(case)["accuracy"], 3)},
            ("0.667", "0.666667", "3 digits"),
        ),
        (
            lambda case: {"mean": float(np.median([s["value"] for s in case.dataset]))},
            ("depends on",),
        ),
        (
            lambda case: {"accuracy": sum(_among_first(case, 2)) / len(case.dataset)},
            ("instead of 0", "wrong prediction"),
        ),
        (
            lambda case: {"accuracy": sum(_of_low_classes(case)) / len(case.dataset)},
            ("another label",),
        ),
        (lambda case: {"ids": [s["id"] + 1 for s in case.dataset]}, ("missing: 0",)),
        (fills_the_last_batch_with_zeros, ("0.5 instead of 0", "fill a batch up")),
        (counts_once_and_divides_wrongly, ("rank 1", "0.5", "0.333333", "means of ranks")),
    ],
)
def test_the_cause_of_a_wrong_number_is_named(loop: Any, told: tuple[str, ...]) -> None:
    sizes = (2,) if loop is counts_once_and_divides_wrongly else (1,)
    sentence = Audit(loop, sizes, "threads", first=True).run().findings[0].sentence
    assert [part for part in told if part not in sentence] == [], sentence


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("means_of_batches", {"means of batches"}),
        ("averages_the_losses_of_batches", {"means of batches"}),
        ("means_of_ranks", {"means of ranks"}),
        ("sums_the_mean_over_ranks", {"multiplied by the number of ranks"}),
        ("divides_a_sum_by_nothing", {"multiplied by the number of samples"}),
        ("divides_by_the_size_with_padding", {"divided by 2", "padding"}),
        ("reports_rank_0_alone", {"rank 0 alone"}),
        ("keeps_the_last_batch_alone", {"last batch"}),
        ("pads_and_averages_batches", {"dealt out more than once", "means of batches"}),
        ("merges_the_parts_that_are_there", {"part of job 0 of 2 was lost", "lacks its last line"}),
        ("appends_to_its_part", {"job 0 of 2 ran twice"}),
    ],
)
def test_mistakes_that_have_a_name_are_told_by_it_and_each_of_two(
    name: str, told: set[str]
) -> None:
    loop, _, case = WRONG[name]
    report = Audit(loop, (2,), backend="threads", tokens="tokens" in case).run()
    sentences = " ".join(finding.sentence for finding in report.findings)
    assert [words for words in told if words not in sentences] == []


DEALT: dict[str, Any] = {
    "once": strided,
    "padded": padded,
    "the last twice": lambda case: [*strided(case), *strided(case)[-1:]],
}
GROUPED: dict[str, Any] = {
    "all": lambda ranks: [[value for batches in ranks for batch in batches for value in batch]],
    "batches": lambda ranks: [batch for batches in ranks for batch in batches],
    "rank 0": lambda ranks: [[value for batch in ranks[0] for value in batch]],
    "last batches": lambda ranks: [[value for batches in ranks for value in batches[-1]]],
}


@pytest.mark.parametrize(
    ("dealt", "grouped", "factor", "case", "told"),
    [
        ("padded", "all", "W", "N=1,B=1,W=2", "multiplied by the number of ranks"),
        ("padded", "all", "W", "N=3,B=1,W=2", "counted; and it is multiplied by the number of r"),
        ("padded", "batches", "W", "N=5,B=2,W=2", "; and it is multiplied by the number of ranks"),
        ("once", "all", "W", "N=2,B=1,W=2", "multiplied by the number of ranks"),
        ("once", "all", "1 / W", "N=2,B=2,W=2", "divided by the number of ranks"),
        ("padded", "all", "1 / W", "N=1,B=1,W=3", "divided by the number of ranks"),
        ("once", "batches", "1 / W", "N=5,B=2,W=2", "; and it is divided by the number of ranks"),
        ("once", "all", "N", "N=2,B=1,W=2", "multiplied by the number of samples"),
        ("padded", "all", "1 / N", "N=3,B=1,W=2", "divided by the number of samples, as"),
        ("padded", "all", "seen / N", "N=1,B=1,W=2", "multiplied by 2 and divided by 1"),
        ("padded", "all", "seen / N", "N=4,B=1,W=3", "counted; and it is multiplied by 6 and"),
        ("the last twice", "all", "seen / N", "N=3,B=4,W=1", "; and it is multiplied by 4 and"),
        ("the last twice", "batches", "1", "N=4,B=3,W=1", "mean of the means of batches"),
        ("padded", "rank 0", "1", "N=3,B=1,W=2", "rank 0 alone"),
        ("padded", "last batches", "1", "N=5,B=2,W=2", "last batch"),
    ],
)
def test_mistakes_are_named_where_samples_were_repeated_or_two_mistakes_look_alike(
    dealt: str, grouped: str, factor: str, case: str, told: str
) -> None:
    def evaluate(case: Case) -> Any:
        own = [[float(s["value"]) for s in batch] for batch in batches(case, DEALT[dealt](case))]
        ranks = [part for part in gathered(own) if part]
        seen = sum(len(batch) for part in ranks for batch in part)
        known = {"W": case.world_size, "N": len(case.dataset), "seen": seen}
        return {"mean": np.mean([*map(np.mean, GROUPED[grouped](ranks))]) * eval(factor, known)}

    sentence = audited(evaluate, backend="threads", case=case).findings[0].sentence
    assert told in sentence and not re.search("or it is (multi|div)", sentence), sentence
