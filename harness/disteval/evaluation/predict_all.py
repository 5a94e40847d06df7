"""Predictions of all samples, without metrics."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.data.predictions import FormatName, Predictions, load_predictions
from disteval.default_backend import joining_backend
from disteval.errors import UsageError
from disteval.evaluation.agreement import agree
from disteval.evaluation.evaluate import evaluate
from disteval.evaluation.gathered import GatheredPredictions
from disteval.evaluation.task import Predict


def predict_all(
    predict: Predict,
    samples: Any,
    backend: str | BaseDistBackend | None = None,
    batch_size: int = 256,
    *,
    folder: str | os.PathLike[str] | None = None,
    format: FormatName = "jsonl",  # noqa: A002
    record: Callable[[Any, Any], Any] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Any:
    """Return the predictions of all samples in the order of the data set; every rank must call it.

    It is proved that each sample is there once. Without a folder, rank 0 gets all of them at once:
    an array or a list, or a tuple or dict of these, as ``predict`` returns them; arrays are
    NumPy's, and bfloat16 is float32. With a folder, each rank writes its own while they are
    computed, so they may be larger than memory; see `Predictions`. If that was interrupted, the
    next call goes on where it stopped, at any world size and batch size.

    Args:
        predict: The model, as in `evaluate`.
        samples: All samples, as in `evaluate`.
        backend: The backend that joins the ranks, or its name.
        batch_size: The number of samples in each call of ``predict``.
        folder: The folder to write to; None keeps predictions in memory.
        format: The format of the files, see `Predictions`.
        record: A function of the outputs and the batch that returns what is kept instead of the
            outputs.
        overwrite: Whether a finished result in the folder is replaced.
        options: The arguments of `evaluate` that say how samples are dealt and read: ``collate``,
            ``fixed_shape``, ``even_calls``, ``by_length``, ``workers``, ``limit`` and ``progress``.

    Returns:
        On rank 0, the predictions, or a `PredictionReader` of the folder; None on other ranks.

    Raises:
        UsageError: On every rank, as `evaluate` raises it; or the folder can't be used.
        RankError: On every rank, when a rank failed. What it had predicted by then stays in the
            folder.
        CoverageError: On every rank, when a sample was missed or is there more than once.
    """
    wrong = {"update", "predictions", "metrics"} & options.keys()
    if wrong:
        raise UsageError(f"predict_all has no argument {wrong.pop()!r}; use disteval.evaluate")
    backend = joining_backend(backend)
    if folder is None:
        gathered = GatheredPredictions(backend, record)
        evaluate(predict, samples, {}, backend, batch_size, predictions=gathered, **options)
        return gathered.result
    error: Exception | None = None
    try:
        where = Predictions(folder, format, record, overwrite)
    except Exception as caught:  # the other ranks wait for this one
        error = caught
    agree(backend, {}, error)
    evaluate(predict, samples, {}, backend, batch_size, predictions=where, **options)
    return load_predictions(folder, verify=False) if backend.rank == 0 else None
