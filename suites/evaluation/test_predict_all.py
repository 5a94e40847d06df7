"""Predictions are complete and in order, and an interrupted run ends as an uninterrupted one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Predictions, RankError, UsageError, evaluate, load_predictions, predict_all
from disteval.metrics import Accuracy
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, values

pytestmark = pytest.mark.usefixtures("without_canary")


def columns(size: int) -> Any:
    """Return samples, each of which knows its number."""
    numbers = np.arange(size)
    return {"x": numbers, "y": numbers % 3}


def scores(batch: Any) -> Any:
    """Return scores of three classes, which are right for two of three samples."""
    x = np.asarray(batch["x"])
    found = np.zeros((len(x), 3), np.float32)
    found[np.arange(len(x)), np.where(x % 5 == 0, (x + 1) % 3, x % 3)] = 1 + x / 7
    return found


def run(world: int, function: Callable[[ThreadsDist], Any]) -> list[Any]:
    return values(run_ranks(world, function))


class PowerError(Exception):
    """The end of a run before its time."""


def evaluated(folder: Path, world: int, **options: Any) -> tuple[list[int], list[Any]]:
    """Evaluate 12 samples; return those that were predicted, and each rank's result or error.

    On two ranks it is cut short, and leaves 4 samples that rank 0 wrote.
    """
    predicted: list[int] = []

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            if backend.world_size == 2 and (backend.rank == 1 or 8 in batch["x"]):
                raise PowerError("it is gone")
            predicted.extend(batch["x"].tolist())
            return scores(batch)

        where = Predictions(folder, **options)
        return evaluate(predict, columns(12), {"a": Accuracy()}, backend, 2, predictions=where)

    return predicted, run_ranks(world, rank)


def test_a_stream_that_became_shorter_is_no_result(tmp_path: Path) -> None:
    def run(size: int, **options: Any) -> Any:
        def predict(batch: Any) -> Any:
            if 8 in batch:
                raise PowerError
            return batch

        predict_all(predict, lambda: iter(range(size)), "non_dist", 4, folder=tmp_path, **options)

    with pytest.raises(RankError):
        run(12)
    with pytest.raises(RankError, match="another folder"):
        run(5, overwrite=True)


def test_the_rate_is_that_of_the_samples_that_were_computed(tmp_path: Path) -> None:
    evaluated(tmp_path, 2)
    for stored in (4, 0):
        (found,) = values(evaluated(tmp_path, 1, overwrite=not stored)[1])
        assert (found.stored, found.size, found.metrics["a"]["top1"]) == (stored, 12, 9 / 12)
        assert found.samples_per_second == (12 - stored) / found.seconds


def test_what_is_stored_is_not_computed_again_where_other_values_are_recorded(
    tmp_path: Path,
) -> None:
    def record(outputs: Any, batch: Any) -> Any:
        return {"label": outputs.argmax(1), "x": batch["x"]}

    evaluated(tmp_path, 2, record=record)
    predicted, outcomes = evaluated(tmp_path, 1, record=record)
    (result,) = values(outcomes)
    assert (len(predicted), result.stored) == (8, 4)
    assert result.metrics == {"a": {"top1": 9 / 12}}
    assert [row["x"] for row in load_predictions(tmp_path)] == list(range(12))


def test_they_have_the_form_that_predict_gives_them() -> None:
    def outputs(batch: Any) -> Any:
        names = [f"sample {x}" for x in batch["x"].tolist()]
        return {"name": names, "ragged": [np.arange(x) for x in batch["x"].tolist()]}

    def rank(backend: ThreadsDist) -> Any:
        return predict_all(outputs, columns(5), backend, 2)

    found = run(2, rank)[0]
    assert found["name"] == [f"sample {x}" for x in range(5)]
    assert [row.tolist() for row in found["ragged"]] == [list(range(x)) for x in range(5)]


def test_large_predictions_are_gathered_in_several_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disteval.evaluation.gathered.MESSAGE_BYTES", 1000)
    largest: list[int] = []

    def rank(backend: ThreadsDist) -> Any:
        gather = backend.all_gather_object

        def watched(sent: Any) -> Any:
            size = getattr(sent, "size", None)
            largest.append(size() if callable(size) else 0)
            return gather(sent)

        monkeypatch.setattr(backend, "all_gather_object", watched, raising=False)
        return predict_all(predict, np.arange(300.0), backend, 8)

    def predict(batch: Any) -> Any:
        # The first batch of each rank is by far the largest, as where the longest come first.
        return [np.repeat(x, 60 if x < 24 else 1 + x % 2) for x in batch]

    found = run(3, rank)[0]
    assert [row.tobytes() for row in found] == [row.tobytes() for row in predict(np.arange(300.0))]
    assert 0 < max(largest) <= 1000


@pytest.mark.parametrize("way", [{"folder": 3}, {"folder": "x", "format": "csv"}])
def test_what_can_not_be_done_is_refused(way: Any) -> None:
    assert_each_raised(
        run_ranks(2, lambda backend: predict_all(scores, [1], backend, **way)), UsageError
    )


def endless() -> Iterator[Any]:
    number = 0
    while True:
        yield {"x": number, "y": 0}
        number += 1


def test_a_limit_is_part_of_what_goes_on(tmp_path: Path) -> None:
    def rank(limit: int) -> Any:
        return lambda backend: predict_all(
            scores, endless, backend, 2, folder=tmp_path, limit=limit, overwrite=True
        )

    assert len(list(run(2, rank(7))[0])) == 7
    assert len(list(run(2, rank(4))[0])) == 4
