"""An audit says what it could not judge, and why, instead of calling a function sound."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from disteval.audit import Audit, AuditError, Case, audit
from disteval.audit.case import Settings
from disteval.audit.cases import cases, in_steps, parse
from disteval.audit.planted import Planted
from disteval.audit.worlds import AuditWorlds
from disteval.cli.audit import audit_command
from disteval.errors import WorldError

from suites.audit.parts import batches, gathered, padded, rights, strided
from suites.audit.right import every_rank_everything, sums_of_integers
from suites.audit.wrong import counts_padding
from suites.helpers.needs import framework, needs
from suites.helpers.processes import run_plainly


class Evaluation:
    """An evaluation that is an object and has no name of its own."""

    def __call__(self, case: Case, factor: float = 1.0) -> Any:
        return {"accuracy": factor * sums_of_integers(case)["accuracy"]}


def test_an_object_is_audited_as_a_function_is() -> None:
    report = Audit(partial(Evaluation(), factor=1.0), (1, 2), backend="threads").run()
    assert (report.verdict, report.reason) == ("sound", "")


def test_percent_are_not_judged() -> None:
    report = Audit(partial(Evaluation(), factor=100.0), (1, 2), backend="threads").run()
    assert report.verdict == "not judged"
    assert report.reason == (
        "accuracy is 100, which is in percent; return a share from 0 to 1 (in the case N=1, B=1, "
        "W=1)"
    )


def test_what_is_never_a_number_is_not_sound() -> None:
    report = Audit(lambda case: {"f1": float("nan")}, (1, 2), backend="threads").run()
    assert report.verdict == "not judged"
    assert report.reason.startswith("there was nothing to compare f1 with")


def test_what_is_the_same_in_every_case_is_noted() -> None:
    def evaluate(case: Case) -> Any:
        return sums_of_integers(case) | {"f1": 0.5, "auc": float("nan")}

    report = Audit(evaluate, (1, 2), backend="threads").run()
    assert report.verdict == "sound"
    assert report.warnings == [
        "f1 is 0.5 in every case, so little is proven about it",
        "nothing is proven about auc: its truth is not known, and there was no number of one rank "
        "to compare it with",
    ]


def test_a_function_that_returns_a_coroutine_is_refused() -> None:
    async def evaluate(case: Case) -> Any:
        return sums_of_integers(case)

    with pytest.raises(WorldError) as caught:
        Audit(evaluate, (1,), backend="threads").run()
    assert "returns a coroutine or a generator; it must return its result" in str(caught.value)


def crashes_with_one_sample(case: Case) -> Any:
    if len(case.dataset) == 1:
        raise ValueError("one sample is too few")
    return sums_of_integers(case)


@pytest.mark.parametrize("how", [{"first": True}, {"only": parse("N=1,B=1,W=1")}, {}])
def test_a_crash_of_the_first_case_is_a_finding(how: dict[str, Any]) -> None:
    report = Audit(crashes_with_one_sample, (1, 2), backend="threads", **how).run()
    assert report.verdict == "wrong", report.reason
    assert report.findings[0].sentence == "rank 0 raised ValueError: one sample is too few"


def test_a_function_that_always_raises_is_not_judged() -> None:
    def evaluate(case: Case) -> Any:
        raise ValueError("no model")

    report = Audit(evaluate, (1, 2), backend="threads", first=True).run()
    assert report.verdict == "not judged"
    assert report.reason == "the function fails in every case: rank 0 raised ValueError: no model"


def test_a_case_of_another_world_size_is_refused() -> None:
    command = ["suites.audit.right:sums_of_integers", "--case", "N=3,B=1,W=3"]
    found = CliRunner().invoke(audit_command, [*command, "--world-size", "1,2"])
    assert found.exit_code == 2
    assert "--case has the world size 3, and --world-size has 1, 2" in found.output


def test_a_case_that_the_function_assumes_away_is_noted() -> None:
    def evaluate(case: Case) -> Any:
        return sums_of_integers(case)

    evaluate.assumes = ("even",)  # type: ignore[attr-defined]
    report = Audit(evaluate, backend="threads", only=parse("N=3,B=1,W=2")).run()
    assert report.warnings == [
        "the function assumes otherwise: the number of samples is divisible by the world size"
    ]


def test_an_audit_without_time_says_so() -> None:
    report = Audit(sums_of_integers, backend="threads", seconds=1e-9).run()
    assert report.verdict == "not judged"
    assert "cases could not be tried within 1e-09 s; allow more seconds" in report.reason


def test_a_function_that_assumes_every_case_away_is_not_judged() -> None:
    def evaluate(case: Case) -> Any:
        return sums_of_integers(case)

    evaluate.assumes = ("one_rank",)  # type: ignore[attr-defined]
    report = Audit(evaluate, (2, 3), backend="threads").run()
    assert (report.verdict, report.exit_code, len(report.cases)) == ("not judged", 2, 0)
    assert report.reason == "no case has what the function assumes; try other world sizes"


def test_ranks_that_do_each_others_work_are_noted() -> None:
    report = Audit(every_rank_everything, (1, 2), backend="threads").run()
    assert report.verdict == "sound"
    assert report.warnings[0].startswith("every rank evaluates every sample, as in the case N=")


@pytest.mark.parametrize(("drop_last", "verdict"), [(False, "sound"), (True, "wrong")])
def test_reading_samples_to_write_them_first_is_not_told_of(drop_last: bool, verdict: str) -> None:
    def evaluate(case: Case) -> Any:
        file = [sample["id"] for sample in case.samples()]
        end = len(file) - len(file) % case.world_size if drop_last else len(file)
        own = gathered(file[case.rank : end : case.world_size])
        return {"ids": [i for ids in own for i in ids]}

    report = Audit(evaluate, (1, 2), backend="threads", first=True).run()
    assert (report.verdict, report.warnings) == (verdict, [])
    assert "fetched" not in " ".join(map(str, report.findings))


def counts_once_and_divides_wrongly(case: Case) -> Any:
    own = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    means = [sum(part) / len(part) for part in gathered(own) if part]
    return {"mean": sum(means) / len(means), "count": sum(map(len, gathered(own)))}


def test_a_finding_says_that_a_sample_was_fetched_and_gathered_once() -> None:
    found = Audit(counts_once_and_divides_wrongly, (2,), "threads", first=True).run().findings[0]
    assert found.sentence == (
        "sample 1 of 3 counts 0.5 instead of 0.333333 in mean; it was fetched once, by rank 1 and "
        "gathered once: the division is wrong"
    )


def test_weights_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    real = AuditWorlds.call

    def call(worlds: AuditWorlds, settings: Settings, planted: Planted) -> Any:
        probed.extend([settings] * (planted.probe is not None))
        return real(worlds, settings, planted)

    monkeypatch.setattr(AuditWorlds, "call", call)
    report = Audit(counts_padding, (1, 2), backend="threads").run()
    assert report.counts["wrong"] > 10
    first = report.findings[0].settings
    assert probed == [first] * (first.size + 1)  # each sample alone, and none


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


def test_each_case_is_begun_before_larger_ones_are_ended() -> None:
    steps = in_steps(cases((1, 2, 3)))
    begun = max(at for at, (_, again) in enumerate(steps) if not again)
    assert begun < 0.6 * len(steps)
    assert len({settings for settings, again in steps if again}) == len(steps) / 2


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
    with pytest.raises(AuditError, match="count is 2 instead of 1"):
        audit(lambda case: {"count": 2}, case="N=1,B=1,W=1", backend="threads")


def _among_first(case: Case, k: int) -> list[bool]:
    """Return whether the label is among the k best scores, of which all but one are equal."""
    best = [np.argsort(-case.predict(s["x"][None])[0], kind="stable")[:k] for s in case.dataset]
    return [s["label"] in some for s, some in zip(case.dataset, best, strict=True)]


def _of_low_classes(case: Case) -> list[int]:
    return rights(case, [s for s in case.dataset if s["label"] < 10])


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (lambda case: {"mean": 7.0}, "it is 7 whichever sample alone counts, and also if none"),
        (
            lambda case: {"accuracy": round(sums_of_integers(case)["accuracy"], 3)},
            "accuracy is 0.667 instead of 0.666667, rounded to 3 digits; return the number as it",
        ),
        (
            lambda case: {"mean": float(np.median([s["value"] for s in case.dataset]))},
            "fetched once, by rank 0: what a sample counts depends on what the others hold",
        ),
        (
            lambda case: {"accuracy": sum(_among_first(case, 2)) / len(case.dataset)},
            "instead of 0, so something counts that should not, such as a wrong prediction",
        ),
        (
            lambda case: {"accuracy": sum(_of_low_classes(case)) / len(case.dataset)},
            "where it holds something else, such as another label, it counts",
        ),
        (
            lambda case: {"ids": [s["id"] + 1 for s in case.dataset]},
            "there are as many ids as samples, but other ones; 0 missing",
        ),
    ],
)
def test_the_cause_of_a_wrong_number_is_named(loop: Any, words: str) -> None:
    assert words in Audit(loop, (1,), "threads", first=True).run().findings[0].sentence


def test_a_number_that_is_kept_for_each_size_is_not_judged() -> None:
    report = Audit(lambda case: {"f1": 1 / len(case.dataset)}, (1, 2), "threads").run()
    assert report.verdict == "not judged"
    assert report.reason.startswith("f1 is the same whatever the samples hold")


def test_a_result_whose_truth_is_not_known_is_noted() -> None:
    report = Audit(lambda case: sums_of_integers(case)["accuracy"], (1, 2), "threads").run()
    assert report.verdict == "sound"
    assert report.warnings[0].startswith("the truth of no result is known, so result of several")


@needs("torch")
def test_a_module_in_training_mode_is_noted() -> None:
    torch = framework("torch")

    def evaluate(case: Case) -> Any:
        case.module().train(case.shuffle)(torch.zeros(1, 8))
        return sums_of_integers(case)

    report = Audit(evaluate, (1, 2), "threads").run()
    assert report.verdict == "sound"
    assert "in training mode, as in the case N=4, B=2, W=1, shuffle: " in report.warnings[0]
