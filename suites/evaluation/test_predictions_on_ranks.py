"""Predictions of ranks in processes of their own, of which one is killed."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Predictions, evaluate, load_predictions, predict_all
from disteval.errors import WorldError
from disteval.metrics import Regression
from disteval.worlds import World

from suites.helpers.needs import needs

SIZE = 60


def evaluated(backend: Any, folder: Path, killed: int) -> tuple[Any, list[int]]:
    """Evaluate into a folder; return the result, and the samples that this rank predicted."""
    asked: list[int] = []
    # An iterator, for a model that held another number when it goes on would be another one.
    kills = iter(lambda: killed, None)

    def predict(x: Any) -> Any:
        if next(kills) in x:
            os.kill(os.getpid(), signal.SIGKILL)
        asked.extend(x.tolist())
        return x**2 / 7

    samples = (np.arange(SIZE, dtype=np.float64), np.arange(SIZE, dtype=np.float64))
    result = evaluate(
        predict, samples, {"error": Regression()}, backend, 4,
        predictions=Predictions(folder, rows_per_part=8), fixed_shape=False, even_calls=False,
    )  # fmt: skip
    return result.metrics["error"], asked


@needs("torch_cpu")
@pytest.mark.usefixtures("without_canary")
def test_a_killed_rank_loses_only_the_part_that_it_was_filling(tmp_path: Path) -> None:
    with World("torch_cpu", 3) as world:
        (expected, _), *_ = world.run(partial(evaluated, folder=tmp_path / "whole", killed=-1))
        with pytest.raises(WorldError):
            world.run(
                partial(evaluated, folder=tmp_path / "killed", killed=41)
            )  # the fourth batch of rank 1
    kept = {
        number
        for path in (tmp_path / "killed").glob("part-*.jsonl")
        for number in [int(line.split(b",")[0].split()[-1]) for line in path.open("rb")]
    }
    assert {4, 5, 6, 7, 16, 17, 18, 19} <= kept < set(range(SIZE))
    with World("torch_cpu", 2) as world:
        told = world.run(partial(evaluated, folder=tmp_path / "killed", killed=-1))
    assert [result for result, _ in told] == [expected] * 2
    assert sorted(number for _, asked in told for number in asked) == sorted({*range(SIZE)} - kept)
    one, other = (load_predictions(tmp_path / name) for name in ("whole", "killed"))
    assert list(one) == list(other) == [number**2 / 7 for number in range(SIZE)]


def listed(backend: Any, folder: Path | None) -> Any:
    found = predict_all(lambda x: x**2, np.arange(23), backend, 4, folder=folder)
    return found if found is None else [int(row) for row in found]


@needs("mpi4py")
def test_ranks_of_mpi_write_and_gather_predictions(tmp_path: Path) -> None:
    with World("mpi4py", 3) as world:
        for folder in (None, tmp_path):
            assert world.run(partial(listed, folder=folder)) == [
                [n**2 for n in range(23)],
                None,
                None,
            ]
