"""The samples of an audit are the same for torch, TensorFlow and Hugging Face's datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from disteval.audit import Case
from disteval.audit.case import Fetches
from disteval.audit.cases import parse
from disteval.audit.planted import Planted

from suites.helpers.needs import needs


def _plain(sample: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


@needs("datasets", "tensorflow")
def test_the_views_agree_with_the_data_set(tmp_path: Path) -> None:
    settings = parse("N=5,B=2,W=1,ids,tokens")
    planted = Planted(settings.size, tokens=True, other_ids=True)
    case = Case(settings, planted, 0, Fetches(tmp_path / "fetches"))
    expected = [_plain(case.dataset[i]) for i in range(5)]
    assert list(map(_plain, case.hf_dataset())) == expected
    assert list(map(_plain, case.tf_dataset().as_numpy_iterator())) == expected
