"""The ids of samples are planted, and every view of a case has the same ones."""

from typing import Any

import numpy as np
from disteval.audit import Audit, Case

from suites.helpers.audits import audited


def _plain(sample: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


_seen: list[Any] = []


def reads_all_views(case: Case) -> Any:
    _seen[:] = [[*map(_plain, case.dataset)], [*map(_plain, case.stream())]]
    return {"count": len(case.dataset)}


def test_an_id_is_no_position_and_the_stream_agrees_with_the_data_set() -> None:
    report = audited(reads_all_views, backend="threads", case="N=5,B=2,W=1,ids,tokens")
    assert report.verdict == "sound", report.findings
    samples, streamed = _seen
    ids = [sample["id"] for sample in samples]
    assert len({*ids} - {*range(5)}) == 5
    assert sorted(ids) != ids
    assert streamed == samples


def test_who_needs_positions_as_ids_says_so_and_no_case_is_lost() -> None:
    def evaluate(case: Case) -> Any:
        values = np.zeros(len(case.dataset))
        for sample in case.dataset:
            values[sample["id"]] = sample["value"]
        return {"mean": values.mean()}

    found = Audit(evaluate, (1,), "threads", first=True).run().findings[0]
    assert (found.kind, "('numbered',)" in found.sentence) == ("crashes", True), found
    evaluate.assumes = ("numbered",)  # type: ignore[attr-defined]
    report = Audit(evaluate, (1,), "threads").run()
    assert (report.verdict, {case["ids"] for case in report.to_json()["cases"]}) == (
        "sound",
        {False},
    )
    everything = Audit(lambda case: {"count": len(case.dataset)}, (1,), "threads").run()
    assert len(report.cases) > len(everything.cases) - 10


def test_a_finding_that_other_ids_have_no_part_in_does_not_mention_them() -> None:
    def evaluate(case: Case) -> Any:
        return {"count": len(case.dataset) + (len(case.dataset) > 9)}

    report = audited(evaluate, (1,), "threads", case="N=10,B=1,W=1,ids")
    sentence = report.findings[0].sentence
    assert ("11 instead of 10" in sentence, "numbered" in sentence) == (True, False), sentence
