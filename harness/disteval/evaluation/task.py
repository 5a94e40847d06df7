"""A task: samples, a model and metrics, as `evaluate` and ``disteval eval`` evaluate them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_count, check_flag, found_value
from disteval.by_sample import takes_ids
from disteval.contract import BaseDistBackend
from disteval.data.collate import Collate, WithIds
from disteval.data.collate import collate as default_collate
from disteval.data.length_of import ByLength
from disteval.data.predictions import Predictions
from disteval.data.samples import open_samples
from disteval.data.sources import Form
from disteval.errors import UsageError
from disteval.evaluation.result import Evaluation
from disteval.evaluation.updates import Update, Updates
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import check_metrics

if TYPE_CHECKING:
    from disteval.evaluation.schedules import Leases
    from disteval.evaluation.work import Progress

Predict = Callable[..., Any]
"""A function of a batch, or of its first field if it is a tuple, to a row for each sample. A
parameter ``ids`` gets the number of the sample in each row."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Everything that an evaluation needs except the ranks that share it.

    ``disteval eval my_module:task`` calls the function ``task`` of my_module on every rank, and
    evaluates the Task that it returns. `evaluate` does the same in a program. Each attribute is
    an argument of `disteval.evaluate`, which describes it, but for the last two.

    Attributes:
        record: A function of the outputs and the batch that returns what is written as predictions
            instead of the outputs.
        name: The name of what is computed, such as that of a task with the versions of its
            weights and data. An interrupted evaluation goes on under the same name alone.

    Raises:
        UsageError: An argument is of another kind or out of range.
    """

    samples: Any
    predict: Predict
    metrics: Mapping[str, BaseMetric]
    batch_size: int = 256
    collate: Collate | None = None
    update: Update | Mapping[str, Update] | None = None
    fixed_shape: bool = True
    even_calls: bool | None = None
    by_length: ByLength | None = None
    workers: int = 0
    limit: int | None = None
    record: Callable[[Any, Any], Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("predict", "collate", "record"):
            value = getattr(self, name)
            if not callable(value) and (name == "predict" or value is not None):
                raise UsageError(f"{name} must be a function, not {found_value(value)}")
        if not isinstance(self.name, str):
            raise UsageError(f"name must be a text, not {found_value(self.name)}")
        check_count("batch_size", self.batch_size)
        check_count("workers", self.workers, 0)
        check_flag("fixed_shape", self.fixed_shape)
        if self.even_calls is not None:
            check_flag("even_calls", self.even_calls)
        if self.limit is not None:
            check_count("limit", self.limit, 0)
        if not isinstance(self.by_length, ByLength | None):
            raise UsageError(
                f"by_length must be a disteval.ByLength, such as ByLength(), not {self.by_length!r}"
            )
        open_samples(self.samples, self.collate)
        check_metrics(self.metrics)
        Updates(self.metrics, self.update)

    @property
    def form(self) -> Form:
        """How its samples become batches.

        Raises:
            UsageError: ``slice_rows`` of ``predict`` returns no number of rows.
        """
        step = 1
        if self.fixed_shape and (self.by_length is None or self.by_length.max_tokens is None):
            slice_rows = getattr(self.predict, "slice_rows", None)
            step = slice_rows(self.batch_size) if callable(slice_rows) else self.batch_size
        check_count("what slice_rows of predict returns", step)
        collate = self.collate or default_collate
        return Form(
            self.batch_size, step, self.limit, self.by_length,
            WithIds(collate) if takes_ids(collate) else collate,
            self.workers, self.even_calls is not False,
        )  # fmt: skip

    def evaluate(
        self,
        backend: str | BaseDistBackend | None = None,
        *,
        predictions: str | os.PathLike[str] | Predictions | None = None,
        progress: bool | Progress = False,
        leases: Leases | None = None,
        ledger: str | os.PathLike[str] | None = None,
    ) -> Evaluation:
        """Evaluate this rank's share of the samples; every rank must call it.

        The arguments, and what is raised, are those of `disteval.evaluate`; the ``record`` of a
        `Predictions` comes before the task's.
        """
        from disteval.evaluation.evaluate import evaluate_task  # which makes a Task, too

        return evaluate_task(lambda: self, backend, predictions, progress, leases, ledger)
