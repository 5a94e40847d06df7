"""What one rank is to evaluate, with everything that the loop needs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from disteval.arguments import check_flag, found_value, is_switched_on
from disteval.by_sample import takes_ids
from disteval.contract import BaseDistBackend
from disteval.data.contents import CONTENTS, DIGESTS, Look, drawn_numbers
from disteval.data.plan import Batch
from disteval.data.predictions import PartWriter, Predictions
from disteval.data.samples import Sized, open_samples
from disteval.data.sources import Indexed, Shards, Source, Streamed, source_of
from disteval.errors import UsageError
from disteval.evaluation.canary import Canary
from disteval.evaluation.gathered import GatheredPredictions
from disteval.evaluation.task import Task
from disteval.evaluation.updates import Updates
from disteval.identity import HELD, Description, describe, is_whole, short
from disteval.ledger import PREDICTIONS
from disteval.metrics.totals import begin_totals, end_totals
from disteval.outputs import OUTPUTS

_log = logging.getLogger("disteval")

Progress = Callable[[int, int | None], None]
"""A function that is called with the samples this rank has done, and all of its samples."""

Target = str | os.PathLike[str] | Predictions | GatheredPredictions | None
"""A folder, with or without settings; or what takes the outputs in memory; or nothing."""


class Work:
    """What one rank is to evaluate, after everything was checked that needs no other rank.

    Args:
        task: The task.
        backend: The backend that joins the ranks.
        predictions: See `disteval.evaluate`.
        progress: See there.
        is_kept: Whether later runs, or ranks that join later, are compared with this one.
        is_lent: Whether ranks borrow leases, of which a shard is one.

    Raises:
        UsageError: An argument is of another kind, or out of range.

    Attributes:
        form: How samples become batches.
        opened: The samples; None if they are a stream.
        source: Yields their batches.
        stream: The source of a stream; None of other samples.
        look: What was seen of the samples, if it is compared with other ranks or earlier runs.
        target: Where predictions are written; None writes none.
        folder: The same, if it is a folder.
        writer: What writes them to a folder.
        write: The function that takes the outputs of a batch; None writes none.
        canary: The calls of ``predict`` that are not counted.
        settings: What must be the same on every rank, by name.
        evaluated: The record of what is evaluated, by which it goes on.
        held: The record of the values that ``predict`` holds; once ranks agree, of those that all
            ranks hold alike, without what is each rank's own, such as its device.
        weights: The digests of the weights of the models that it holds, which may not.
        spans_ranks: Whether it holds a model of torch whose parameters are sharded over ranks, so
            that each call is a collective.
    """

    def __init__(
        self,
        task: Task,
        backend: BaseDistBackend,
        predictions: Target,
        progress: bool | Progress,
        *,
        is_kept: bool,
        is_lent: bool = False,
    ) -> None:
        self.task, self.backend, self.progress = task, backend, progress
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(task.predict, torch.nn.Module):
            _check_training(task.predict)
        if not callable(progress):
            check_flag("progress", progress)
        self.form = task.form
        self.takes_ids = takes_ids(task.predict)
        self.updates = Updates(task.metrics, task.update)
        self.target = None if predictions is None else _target(predictions, task)
        self.folder = self.target if isinstance(self.target, Predictions) else None
        self.writer = None if self.folder is None else PartWriter(self.folder)
        self.write = None if self.writer is None else self.writer.write
        if isinstance(self.target, GatheredPredictions):
            self.write = self.target.write
        self.canary = Canary()
        self.is_kept = is_kept or self.folder is not None
        self.evaluated: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self.weights: dict[str, str] = {}
        self.spans_ranks = False
        self._models: list[Any] = []
        self.stream: Streamed | None = None
        self.opened: Sized | None = open_samples(
            task.samples, None if task.collate is None else self.form.collate
        )
        if self.is_kept or backend.world_size > 1:
            self._describe()
        elif torch is not None:
            found = Description("predict", task.predict, is_model=True, has_digests=False)
            self._models = found.models
        if self.opened is None:
            in_step = self.spans_ranks if task.even_calls is None else task.even_calls
            in_step = in_step and not is_lent and backend.world_size > 1
            self.stream = source_of(task.samples, self.form, backend.world_size, in_step=in_step)
            self.source: Source = self.stream
        else:  # before a sample is read, for which a data set may open a file
            self.source = Indexed(self.opened, self.form, backend)
        self.look = self._look() if self.is_kept or backend.world_size > 1 else None
        self.settings: dict[str, Any] = {
            "batch_size": task.batch_size, "fixed_shape": task.fixed_shape, "limit": task.limit,
            "even_calls": task.even_calls, "by_length": str(task.by_length),
            "the format of predictions": self.folder and self.folder.format,
            **self.evaluated, **self.weights,
            "the number of samples":
                self.stream.described if self.stream else self.source.size,
        }  # fmt: skip
        begin_totals(task.metrics, backend)  # last: what fails before leaves them as they were

    def close(self) -> None:
        """End what reads ahead, and reset the metrics, which may be given samples of their own."""
        self.source.close()
        end_totals(self.task.metrics)

    def record(self) -> dict[str, str]:
        """Return what must be equal for a later run to go on, by name."""
        found = self.evaluated | self.held | {OUTPUTS: self.canary.text}
        found[CONTENTS] = short(self.look.text) if self.look else ""
        if self.folder is not None:
            found["the format of predictions"] = self.folder.format
            found[PREDICTIONS] = str(self.folder.path.absolute())
        found["the number of samples"] = str(self.settings["the number of samples"])
        if self.stream is not None:
            found["limit"] = str(self.form.limit)
        return found

    def inputs_of(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the positional and the named arguments that ``predict`` gets of a batch."""
        inputs = batch.filled[0] if isinstance(batch.filled, tuple) else batch.filled
        return inputs, {"ids": batch.numbers} if self.takes_ids else {}

    def _describe(self) -> None:
        task = self.task
        found: dict[str, str] = {"name": task.name}
        found["metrics"] = str(sorted(map(str, task.metrics)))
        for name, metric in task.metrics.items():
            found |= describe(f"the metric {name!r}", metric)
        model = Description("predict", task.predict, is_model=True)
        self.held = {f"{HELD}{name}": value for name, value in model.values.items()}
        self._models = model.models
        self.spans_ranks = not all(map(is_whole, model.models))
        if is_switched_on(DIGESTS):
            self.weights = model.weights
        for name in ("collate", "update"):
            found |= describe(name, getattr(task, name))
        record = None if self.target is None else self.target.record
        self.evaluated = found | model.code | describe("record", record)

    def _look(self) -> Look | None:
        if self.opened is not None:
            read, size = self.opened, self.source.size or 0
            return Look(read.digests, drawn_numbers(size), size, read.bytes_held)
        if isinstance(self.stream, Shards) and self.stream.sharded is not None:
            shards = self.stream.sharded
            return Look(shards.digests, shards.some_numbers())
        return None  # every rank reads all elements, and compares them at the end

    def warn_of_training(self) -> None:
        """Say once that a model has computed a batch in training mode."""
        while self._models:
            model = self._models.pop()
            kinds = {type(part).__name__ for part in model.modules() if part.training}
            wrong = sorted(kind for kind in kinds if "Dropout" in kind or "BatchNorm" in kind)
            if wrong:
                _log.warning(
                    "predict computes a %s in training mode, in which its %s draws random numbers "
                    "or mixes the samples of a batch, so that the result depends on batches and "
                    "ranks; call its eval() first", type(model).__name__, " and ".join(wrong),
                )  # fmt: skip


def _target(value: Any, task: Task) -> Predictions | GatheredPredictions:
    if isinstance(value, str | os.PathLike):
        return Predictions(value, record=task.record)
    if isinstance(value, Predictions) and value.record is None:
        return replace(value, record=task.record)
    if not isinstance(value, Predictions | GatheredPredictions):
        raise UsageError(
            f"predictions must be a folder, or disteval.Predictions(folder, ...), not "
            f"{found_value(value)}"
        )
    return value


def _check_training(predict: Any) -> None:
    """Refuse a model of torch in training mode; an exported one computes as it was traced."""
    is_exported = isinstance(predict, sys.modules["torch"].fx.GraphModule)
    # One that wraps others, such as DistributedDataParallel, has a mode that nothing depends on.
    parts = [part for part in predict.modules() if not list(part.children())]
    if not is_exported and any(part.training for part in parts):
        raise UsageError(
            f"predict is a {type(predict).__name__} in training mode, in which dropout draws "
            f"random numbers and a batch normalisation mixes the samples of a batch; call its "
            f"eval() first, or give a function that calls it, if it is to be evaluated in training "
            f"mode"
        )
