"""What an evaluation shows, and the data sets of pictures and the outputs that it refuses."""

from typing import Any

import numpy as np
import pytest
from disteval import RankError, UnknownBackendError, evaluate, get_dist_backend
from disteval.data import ArrayDataset

from suites.helpers.thread_world import run_ranks, values


def numbered(size: int) -> ArrayDataset:
    """Return a data set whose labels are its indices, which its pictures contain."""
    images = np.zeros((size, 3, 2, 2), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(size)
    return ArrayDataset("numbered", images, np.arange(size), tuple(map(str, range(64))))


def read_label(images: Any) -> Any:
    """Return scores that are right for two of three pictures."""
    index = images[:, 0, 0, 0].astype(int)
    scores = np.zeros((len(images), 64))
    scores[np.arange(len(images)), np.where(index % 3 == 0, 63, index)] = 1
    return scores


def test_progress_is_told_after_every_batch() -> None:
    told: list[tuple[int, int]] = []
    backend = get_dist_backend("non_dist")
    evaluate(read_label, numbered(5), {}, backend, 2, progress=lambda *step: told.append(step))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_bar_is_shown_on_rank_0_alone(capfd: pytest.CaptureFixture[str]) -> None:
    values(run_ranks(3, lambda b: evaluate(read_label, numbered(9), {}, b, 2, progress=True)))
    shown = capfd.readouterr().err
    assert "rank 0: 100%" in shown
    assert "4/4" in shown
    assert "rank 1" not in shown


def test_a_backend_by_name_is_taken() -> None:
    assert evaluate(read_label, numbered(4), {}, "non_dist").size == 4
    with pytest.raises(UnknownBackendError, match=r"non_dits.*'non_dist'"):
        evaluate(read_label, numbered(4), {}, "non_dits")


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (None, "None"),
        ({"logits": np.zeros((3, 64))}, r"3 rows under 'logits'"),
        ((np.zeros((2, 64)), np.zeros(3)), "3 rows at position 1"),
        ([0], "a list of 1 entries"),
        ("ab", r"\bstr\b"),
        (0.5, r"\bfloat\b"),
        (np.array(0.5), "a single number"),
        (np.zeros((1, 64)), "1 rows"),
    ],
)
def test_a_predict_that_returns_no_scores_is_refused(scores: Any, found: str) -> None:
    with pytest.raises(RankError, match=rf"samples 0, 1,.* predict .*{found}"):
        evaluate(lambda _: scores, numbered(4), {}, "non_dist", 2)
