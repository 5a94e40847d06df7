"""A result is judged by the precision that it can have, and no wrong one hides behind it."""

from typing import Any

import numpy as np
import pytest
from disteval.audit import Audit, Case

from suites.audit.parts import Loop, batches, gathered, padded, strided
from suites.helpers.audits import first_finding
from suites.helpers.needs import framework, needs

pytestmark = needs("torch")


def _values(case: Case, indices: list[int]) -> list[float]:
    own = [float(s["value"]) for batch in batches(case, indices) for s in batch]
    return [value for part in gathered(own) for value in part]


def _bfloat16(value: float) -> Any:
    import torch

    return torch.tensor(value, dtype=torch.float32).to(torch.bfloat16)


def means_in_bfloat16(case: Case) -> Any:
    values = _values(case, strided(case))
    return {"mean": _bfloat16(sum(values)) / _bfloat16(len(values)), "count": len(values)}


def scores_in_float16(case: Case) -> Any:
    own = [case.dataset[i] for i in strided(case)]
    x = np.stack([np.zeros(8, np.float32), *(s["x"] for s in own)]).astype(np.float16)
    labels = np.array([-1, *(s["label"] for s in own)])
    right = case.predict(x).argmax(axis=1) == labels
    shares = gathered(np.float16(right.sum()) / np.float16(len(case.dataset)))
    return {"accuracy": float(sum(shares))}


def a_module_in_bfloat16(case: Case) -> Any:
    import torch

    module = case.module().to(torch.bfloat16)
    total = 0.0
    for batch in batches(case, strided(case)):
        values = torch.tensor([float(s["value"]) for s in batch])
        total += float(module(value=values)["loss"].detach()) * len(batch)
    return {"mean": sum(gathered(total)) / len(case.dataset)}


def counts_padding_in_bfloat16(case: Case) -> Any:
    values = _values(case, padded(case))
    return {"mean": _bfloat16(sum(values) / len(values))}


def drops_one_of_many_in_bfloat16(case: Case) -> Any:
    values = _values(case, [i for i in strided(case) if i != 250])
    return {"mean": _bfloat16(sum(values) / len(values))}


def drops_one_of_many_after_scores_in_float16(case: Case) -> Any:
    values = _values(case, [i for i in strided(case) if i != 1900])
    case.predict(np.zeros((1, 8), np.float16))
    return {"mean": sum(values) / len(values)}


def drops_one_of_many_from_the_count_after_scores_in_float16(case: Case) -> Any:
    case.predict(np.zeros((1, 8), np.float16))
    return {"count": sum(gathered(len([i for i in strided(case) if i != 1900])))}


def counts_in_float16(case: Case) -> Any:
    return {"count": float(np.float16(sum(gathered(len(strided(case))))))}


def overflows_float16(case: Case) -> Any:
    with np.errstate(over="ignore"):
        return {"sum": np.float16(sum(_values(case, strided(case))))}


def drops_the_last_of_very_many_in_bfloat16(case: Case) -> Any:
    size = len(case.dataset)
    values = _values(case, [i for i in strided(case) if i < size - (size > 512)])
    return {"mean": _bfloat16(sum(values) / len(values))}


def rounds_to_bfloat16_and_returns_a_float(case: Case) -> Any:
    values = _values(case, strided(case))
    return {"mean": float(_bfloat16(sum(values) / len(values)))}


@pytest.mark.parametrize("loop", [means_in_bfloat16, scores_in_float16, a_module_in_bfloat16])
def test_a_right_result_in_few_bits_is_sound(loop: Loop) -> None:
    if loop is not scores_in_float16:
        framework("torch")
    report = Audit(loop, (2,), backend="threads").run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")


WRONG = {
    counts_padding_in_bfloat16: ("counted twice", "N=2,B=1,W=3"),
    drops_one_of_many_in_bfloat16: ("dropped", "N=299,B=24,W=1"),
    drops_the_last_of_very_many_in_bfloat16: ("dropped", "N=2051,B=171,W=1"),
    rounds_to_bfloat16_and_returns_a_float: ("weighted wrongly", "N=3,B=1,W=1"),
    drops_one_of_many_after_scores_in_float16: ("dropped", "N=2051,B=171,W=1"),
    drops_one_of_many_from_the_count_after_scores_in_float16: ("dropped", "N=2051,B=171,W=1"),
    counts_in_float16: ("counted twice", "N=2051,B=171,W=1"),
    overflows_float16: ("weighted wrongly", "N=2051,B=171,W=1"),
}


@pytest.mark.parametrize("loop", WRONG)
def test_a_wrong_result_in_few_bits_is_convicted(loop: Loop) -> None:
    if "bfloat16" in loop.__name__:
        framework("torch")
    report = Audit(loop, backend="threads", first=True).run()
    assert first_finding(report) == WRONG[loop], report.findings
    if loop is drops_one_of_many_in_bfloat16:
        assert "224 to 255" in report.findings[0].sentence  # which hold the sample 250
    if loop is rounds_to_bfloat16_and_returns_a_float:
        for found in ("36.25", "36.3333", "bfloat16"):
            assert found in report.findings[0].sentence
