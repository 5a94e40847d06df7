"""The samples of an audit are the same for torch, TensorFlow and Hugging Face's datasets."""

from pathlib import Path
from typing import Any

import numpy as np

from suites.helpers.audits import planted_case
from suites.helpers.needs import needs


def _plain(sample: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


@needs("datasets", "tensorflow")
def test_the_views_agree_with_the_data_set(tmp_path: Path) -> None:
    case = planted_case("N=5,B=2,W=1,ids,tokens", tmp_path)
    expected = [_plain(case.dataset[i]) for i in range(5)]
    assert list(map(_plain, case.hf_dataset())) == expected
    assert list(map(_plain, case.tf_dataset().as_numpy_iterator())) == expected
