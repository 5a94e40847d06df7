"""Every sample is counted exactly once, whatever the world, the shards and the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError, evaluate, get_dist_backend
from disteval.data import ArrayDataset
from disteval.metrics import Accuracy, BaseMetric
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks, values


class Labels(BaseMetric):
    """A metric whose result is the list of its labels, in the order of the data set."""

    def add(self, scores: Any, labels: Any, *, ids: Any = None) -> None:
        self._extend(labels.tolist(), ids)

    def compute_metric(self, results: list[int]) -> list[int]:
        return results


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


def run(world: int, function: Callable[[ThreadsDist], Any]) -> list[Any]:
    return values(run_ranks(world, function))


def test_metrics_start_afresh() -> None:
    labels = Labels()
    labels.add(None, np.array([99]))
    backend = get_dist_backend("non_dist")
    for _ in range(2):
        result = evaluate(read_label, numbered(3), {"labels": labels}, backend, 2)
        assert result.metrics == {"labels": [0, 1, 2]}


def test_progress_is_told_after_every_batch() -> None:
    told: list[tuple[int, int]] = []
    backend = get_dist_backend("non_dist")
    evaluate(read_label, numbered(5), {}, backend, 2, progress=lambda *step: told.append(step))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_bar_is_shown_on_rank_0_alone(capfd: pytest.CaptureFixture[str]) -> None:
    run(3, lambda backend: evaluate(read_label, numbered(9), {}, backend, 2, progress=True))
    shown = capfd.readouterr().err
    assert "rank 0: 100%" in shown
    assert "4/4" in shown
    assert "rank 1" not in shown


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_a_batch_size_that_is_none_is_refused(batch_size: Any) -> None:
    with pytest.raises(UsageError, match=f"batch_size.*{batch_size}"):
        evaluate(read_label, numbered(3), {}, get_dist_backend("non_dist"), batch_size)


def test_a_predict_that_loses_rows_is_refused() -> None:
    with pytest.raises(RankError, match=r"s 0, 1,.*\b2\b.*\b1\b"):
        evaluate(lambda x: x[:1], numbered(3), {}, get_dist_backend("non_dist"), 2)


class TheirDataset:
    """A data set of somebody else, with the attributes of an `ArrayDataset`."""

    classes = ("a", "b")

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)


def test_anybodys_data_set_with_fractions_or_unknown_classes_is_refused() -> None:
    pictures, labels = np.full((4, 3, 2, 2), 0.5), np.array([0, 1, 2, 1])
    with pytest.raises(UsageError, match=r"float64.*0\.5\b"):
        evaluate(read_label, TheirDataset(pictures, labels % 2), {"labels": Labels()}, "non_dist")
    images = pictures.astype(np.uint8)
    with pytest.raises(UsageError, match=r"\[2\] .*\b1 of 4\b"):
        evaluate(read_label, TheirDataset(images, labels), {"labels": Labels()}, "non_dist")
    found = evaluate(read_label, TheirDataset(images, labels % 2), {"labels": Labels()}, "non_dist")
    assert found.metrics["labels"] == [0, 1, 0, 1]


UNEVEN = [
    ({"length": 3}, "the data set has 4 images, 4 labels and the length 3; give one label for"),
    ({"length": 5}, "4 images, 4 labels and the length 5"),
    ({"labels": np.zeros(9, int)}, "4 images, 9 labels and the length 4"),
    ({"labels": [0, 0, 0, 0]}, "labels has the type list; it must be an array, such as numpy"),
    ({"images": [np.zeros((3, 2, 2), np.uint8)] * 4}, "images has the type list; it must be an"),
]


@pytest.mark.parametrize(("other", "message"), UNEVEN)
def test_anybodys_data_set_has_one_label_for_each_picture(other: Any, message: str) -> None:
    class Uneven:
        images, labels, length = numbered(4).images, np.zeros(4, int), 4

        def __len__(self) -> int:
            return int(self.length)

    dataset = Uneven()
    vars(dataset).update(other)
    refused(samples=dataset, message=message)


def refused(*, message: str, error: type[Exception] = UsageError, **given: Any) -> None:
    """Evaluate with one argument of another kind, and expect a sentence about it."""
    fine = {"predict": read_label, "samples": numbered(4), "metrics": {"accuracy": Accuracy()}}
    with pytest.raises(error, match=message):
        evaluate(**{**fine, "backend": "non_dist", "batch_size": 2, **given})


def test_a_backend_by_name_is_taken() -> None:
    assert evaluate(read_label, numbered(4), {"labels": Labels()}, "non_dist").evaluated == 4
    refused(backend="non_dits", message=r"no backend 'non_dits'\. Did you mean 'non_dist'")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (None, "samples has the type NoneType; give arrays, anything with a length and an ind"),
        ("pictures.txt", "samples is a str; give the samples, such as an open file"),
        ((np.zeros(3), np.zeros(4)), r"a tuple of arrays with the lengths \{0: 3, 1: 4\}; give a"),
        ({"x": np.zeros(3), "y": [1]}, r"a dict of arrays with the lengths \{'x': 3, 'y': 1\}"),
        ({"x": 3}, "the column 'x' of samples has the type int; it must be an array"),
        (np.array(3), "the column 'samples' of samples has the type ndarray; it must be an array"),
        ((), "samples is an empty tuple; give a tuple of arrays, or a list if it holds the samp"),
    ],
)
def test_samples_of_another_kind_are_refused(samples: Any, message: str) -> None:
    refused(samples=samples, message=message)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            Accuracy(),
            "metrics must be a dict .* not a value of type Accuracy",
        ),
        ([Accuracy()], "not a value of type list"),
        (None, "not a value of type NoneType"),
        ({"a": Accuracy}, r"the metric 'a' must be an instance .*; make one, Accuracy\(\)"),
        ({"a": len}, "the metric 'a' must be an instance .*, not <built-in function len>"),
    ],
)
def test_metrics_that_are_no_dict_of_metrics_are_refused(metrics: Any, message: str) -> None:
    refused(metrics=metrics, message=message)


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (None, "None"),
        ({"logits": np.zeros((3, 64))}, r"3 rows under 'logits'"),
        ((np.zeros((2, 64)), np.zeros(3)), "3 rows at position 1"),
        ([0], "a list of 1 entries"),
        ("ab", "a value of type str"),
        (0.5, "a value of type float"),
        (np.array(0.5), "a single number"),
        (np.zeros((1, 64)), "1 rows"),
    ],
)
def test_a_predict_that_returns_no_scores_is_refused(scores: Any, found: str) -> None:
    message = rf"returned {found}.*; it must return one row for each sample"
    refused(predict=lambda _: scores, message=message, error=RankError)


def test_a_predict_that_is_no_function_is_refused() -> None:
    refused(predict=None, message="predict must be a function, not None")
