"""The ids of samples are planted, and every view of a case has the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval.audit import Audit, Case
from disteval.audit.case import Fetches
from disteval.audit.cases import cases, parse
from disteval.audit.planted import Planted

SETTINGS = parse("N=5,B=2,W=1,ids,tokens")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A case whose ids are other numbers than positions."""
    planted = Planted(SETTINGS.size, tokens=True, other_ids=True)
    return Case(SETTINGS, planted, 0, Fetches(tmp_path / "fetches"))


def _plain(sample: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


def test_an_id_is_no_position_and_the_stream_agrees_with_the_data_set(case: Case) -> None:
    samples = [case.dataset[i] for i in range(5)]
    ids = [sample["id"] for sample in samples]
    assert len(set(ids)) == 5
    assert not set(ids) & set(range(5))
    assert sorted(ids) != ids
    assert list(map(_plain, case.stream())) == list(map(_plain, samples))


def test_who_needs_positions_as_ids_says_so_and_no_case_is_lost() -> None:
    number = len(list(cases((1, 2))))
    numbered = list(cases((1, 2), ("numbered",)))
    assert not any(settings.ids for settings in numbered)
    assert len(numbered) > number - 10

    def evaluate(case: Case) -> Any:
        values = np.zeros(len(case.dataset))
        for sample in case.dataset:
            values[sample["id"]] = sample["value"]
        return {"mean": values.mean()}

    found = Audit(evaluate, (1,), "threads", first=True).run().findings[0]
    assert found.kind == "crashes"
    assert found.sentence.endswith(
        "the function is right where ids are positions, as they are not here; one that needs that "
        "must say so, with evaluate.assumes = ('numbered',)"
    )
    evaluate.assumes = ("numbered",)  # type: ignore[attr-defined]
    assert Audit(evaluate, (1,), "threads").run().verdict == "sound"


def test_a_finding_that_other_ids_have_no_part_in_does_not_mention_them() -> None:
    def evaluate(case: Case) -> Any:
        return {"count": len(case.dataset) + (len(case.dataset) > 9)}

    found = Audit(evaluate, (1,), "threads", only=parse("N=10,B=1,W=1,ids")).run().findings[0]
    assert found.sentence.startswith("count is 11 instead of 10")
    assert "numbered" not in found.sentence
