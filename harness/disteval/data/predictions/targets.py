"""The places for the outputs of an evaluation, as an argument names them."""

from __future__ import annotations

import os
from typing import Any

from disteval.arguments import found_value
from disteval.contract import BaseDistBackend
from disteval.data.predictions.settings import Predictions
from disteval.data.predictions.sink import Sink
from disteval.data.predictions.writer import PredictionWriter
from disteval.errors import UsageError

Target = str | os.PathLike[str] | Predictions | Sink | None
"""A folder, with or without settings; or what takes the outputs in memory; or nothing."""


def check_target(value: Any) -> Predictions | Sink:
    """Return the place that an argument ``predictions`` stands for.

    Raises:
        UsageError: It is of another kind.
    """
    if isinstance(value, str | os.PathLike):
        return Predictions(value)
    if value is not None and not isinstance(value, Predictions | Sink):
        raise UsageError(
            f"predictions must be a folder, or disteval.Predictions(folder, ...), not "
            f"{found_value(value)}"
        )
    return value or Sink()


def open_sink(
    target: Predictions | Sink,
    backend: BaseDistBackend,
    settings: dict[str, str],
    *,
    exact: bool,
) -> Sink:
    """Return what takes the outputs; every rank must call it.

    Args:
        target: The place.
        backend: Joins the ranks.
        settings: The record of what is evaluated, which must be equal for a run to go on.
        exact: Whether stored outputs are needed to the last bit, as metrics need them.

    Raises:
        UsageError: On every rank, see `PredictionWriter`.
    """
    if isinstance(target, Sink):
        return target
    return PredictionWriter(target, backend, settings, exact=exact)
