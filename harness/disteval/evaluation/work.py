"""What every schedule of an evaluation does: check the arguments, and evaluate batches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from disteval import traces
from disteval.arguments import check_flag
from disteval.by_sample import drawn, takes_ids
from disteval.contract import BaseDistBackend
from disteval.coverage import Counted, name_some
from disteval.data.batching import Batch, Indices
from disteval.data.collate import Collate, WithIds, first_rows
from disteval.data.contents import Look, is_on
from disteval.data.loading import Loader
from disteval.data.predictions import Predictions, Sink, Target, check_target
from disteval.data.samples import Sized, open_samples
from disteval.data.shards import ShardedStream
from disteval.errors import SampleError, UsageError, describe_error
from disteval.evaluation.agreement import Failure, log_failure
from disteval.evaluation.canary import Canary
from disteval.evaluation.dealing import Dealing
from disteval.evaluation.feeds import Batches
from disteval.evaluation.updates import Update, Updates, check_rows
from disteval.identity import describe, describe_model
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import MetricGroup

_log = logging.getLogger("disteval")

Predict = Callable[..., Any]
"""A function of a batch, or of its first field if it is a tuple, to a row for each sample. A
parameter ``ids`` gets the number of the sample in each row."""

Progress = Callable[[int, int | None], None]
"""A function that is called with the samples this rank has done, and all of its samples."""


@dataclass
class Work:
    """What one rank was asked to evaluate, after its arguments were checked.

    Args:
        predict: The model.
        samples: The samples, as the user gave them.
        metrics: Metrics by name; they are reset, and compute over ``backend`` from here on.
        backend: The backend that joins the ranks.
        dealing: How samples are distributed over batches and ranks.
        collate: See `disteval.evaluate`, as for the rest.
        update: See there.
        predictions: See there.
        progress: See there.
        is_compared: Whether ranks compare the contents of some samples before the first batch.
        name: See there.

    Raises:
        UsageError: An argument is of another kind, or out of range.

    Attributes:
        opened: The samples; None if they are a stream.
        length: The number of samples, before one was read.
        takes_ids: Whether ``predict`` has a parameter ``ids``, which gets the number of the sample
            in each row.
        collating: ``collate``, as batches are made by it.
        loader: Reads batches of the samples; None if they are a stream.
        look: What was seen of the samples, if it is compared with other ranks or earlier runs.
        evaluated: The record of what is evaluated, by which it goes on.
        held: The record of the values that ``predict`` holds, which may differ between ranks.
        weights: The digests of the weights of the models that it holds, which may not.
        canary: The calls of ``predict`` that are not counted.
        settings: What must be the same on every rank, by name.
    """

    predict: Predict
    samples: Any
    metrics: Mapping[str, BaseMetric]
    backend: BaseDistBackend
    dealing: Dealing
    collate: Collate | None
    update: Update | Mapping[str, Update] | None
    predictions: Target
    progress: bool | Progress
    is_compared: bool
    name: str = ""

    def __post_init__(self) -> None:
        _check_functions(predict=self.predict, collate=self.collate)
        if not callable(self.progress):
            check_flag("progress", self.progress)
        self.takes_ids = takes_ids(self.predict)
        self.collating = self.collate
        if self.collate is not None and takes_ids(self.collate):
            self.collating = WithIds(self.collate)
        self.opened: Sized | None = open_samples(self.samples, self.collating)
        self.group = MetricGroup(self.metrics, self.backend)
        self.updates = Updates(self.metrics, self.update)
        self.target: Predictions | Sink = check_target(self.predictions)
        self.group.reset_to_sums()
        self.canary = Canary()
        self.loader: Loader | None = None
        self.length = 0
        if self.opened is not None:  # before a sample is read, for which a data set may open a file
            self.length, workers = len(self.opened), self.dealing.workers
            self.loader = Loader(self.opened.reader(reuse=not workers), workers)
        self.look: Look | None = None
        if self.is_compared or isinstance(self.target, Predictions):
            self.look = self._look()
        self.evaluated: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self.weights: dict[str, str] = {}
        self._models: list[Any] = []
        self._has_drawn = False
        if self.is_compared or isinstance(self.target, Predictions):
            self._describe()
        self.settings: dict[str, Any] = self.dealing.settings() | self.evaluated | self.weights
        self.settings["the format of predictions"] = self.target.format

    def _describe(self) -> None:
        found: dict[str, str] = {"name": self.name}
        if self.opened is not None:
            found["the number of samples"] = str(self.size)
        found["metrics"] = str(sorted(map(str, self.metrics)))
        for name, metric in self.metrics.items():
            found |= describe(f"the metric {name!r}", metric)
        model = describe_model("predict", self.predict)
        self.held, self._models = model.held, model.models
        if is_on():
            self.weights = model.weights
        for name in ("collate", "update"):
            found |= describe(name, getattr(self, name))
        self.evaluated = found | model.code | describe("record", self.target.record)

    @property
    def size(self) -> int | None:
        """The number of samples to evaluate; None for a stream."""
        return None if self.opened is None else self.dealing.limited(self.length)

    @property
    def content(self) -> str:
        """A digest of what was seen of the samples, or nothing."""
        return "" if self.look is None else self.look.digest

    def _look(self) -> Look | None:
        if self.opened is not None:
            return Look(self.opened, self.dealing.limited(self.length))
        if isinstance(self.samples, ShardedStream) and self.dealing.limit is None:
            return Look(self.samples, 0, self.samples.some_numbers())
        return None  # every rank reads all elements, and compares them at the end

    def run(
        self, feed: Batches, sink: Sink, report: Progress, rank: int
    ) -> tuple[Counted, Failure | None]:
        """Evaluate this rank's batches; return the ids that were counted, and what failed."""
        predict, group, updates = self.predict, self.group, self.updates
        add, write = updates.add, sink.write
        counted = Counted()
        place, ids = "starting", counted.all()
        if (recorder := traces.current()) is not None:
            predict = recorder.timed(predict, "compute", "predict")
            add = recorder.timed(add, "metric", "add")
            write = recorder.timed(write, "data", "write")
        try:
            group.check_own()
            place = "reading"
            with self._noting(rank), closing(iter(feed)) as batches, group.trusting_ids():
                for batch in traces.loading(batches, _size_of):
                    place, ids = "predictions", batch.ids
                    outputs = sink.stored(ids) if batch.rows else None
                    if outputs is None and batch.rows:
                        place = "predict"
                        outputs = self.canary.first(predict, self.inputs_of(batch), batch.rows)
                        self._warn_of_training()
                        check_rows(outputs, batch.rows)
                        if 0 < len(ids) < batch.rows:
                            outputs = first_rows(outputs, batch.rows, len(ids))
                    if len(ids) and batch.rows:
                        place = ""
                        add(outputs, batch.real, ids)
                        place = "predictions"
                        write(ids, outputs, batch.real)
                    counted.add(ids, batch.contents)
                    place = "progress"
                    report(feed.seen, feed.total)
                    place = "reading"
        except Exception as error:  # the other ranks hear of it after their last batch
            failure = _failure(place or updates.doing, ids, error)
            log_failure(rank, failure)
            return counted, failure
        return counted, None

    def inputs_of(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the positional and the named arguments that ``predict`` gets of a batch."""
        inputs = batch.filled[0] if isinstance(batch.filled, tuple) else batch.filled
        return inputs, {"ids": batch.numbers} if self.takes_ids else {}

    @contextmanager
    def _noting(self, rank: int) -> Iterator[None]:
        """Say once that samples were evaluated with numbers that batches and ranks share."""
        with drawn() as names:
            yield
        if names and not self._has_drawn:
            self._has_drawn = True
            _log.warning(
                "rank %d drew from the global generator of %s while it evaluated samples, so the "
                "result depends on ranks and batches if the numbers count; give predict or collate "
                "a parameter ids, and draw by disteval.seeds(ids)", rank, " and ".join(names),
            )  # fmt: skip

    def _warn_of_training(self) -> None:
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


def _size_of(batch: Batch) -> int:
    return len(batch.ids)


def _failure(place: str, ids: Indices, error: Exception) -> Failure:
    if isinstance(error, SampleError):
        cause = error.__cause__
        return Failure(f"failed: {error}", cause if isinstance(cause, Exception) else error)
    if place in ("starting", "reading"):
        return Failure(f"failed while {place}: {describe_error(error)}", error)
    where = "at its padding"
    if len(ids):
        where = f"at sample{'s' * (len(ids) > 1)} {name_some(ids)}"
    return Failure(f"failed {where}, in {place}: {describe_error(error)}", error)


def _check_functions(**given: object) -> None:
    for name, value in given.items():
        if not callable(value) and not (name != "predict" and value is None):
            raise UsageError(f"{name} must be a function, not {value!r}")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model := given["predict"], torch.nn.Module):
        return
    if isinstance(model, torch.fx.GraphModule):
        return  # an exported one computes as it was traced, and has no eval()
    # One that wraps others, such as DistributedDataParallel, has a mode that nothing depends on.
    if any(part.training for part in model.modules() if not list(part.children())):
        raise UsageError(
            f"predict is a {type(model).__name__} in training mode, in which dropout draws random "
            f"numbers and a batch normalisation mixes the samples of a batch; call its eval() "
            f"first, or give a function that calls it, if it is to be evaluated in training mode"
        )


@contextmanager
def reporting(progress: bool | Progress, rank: int, total: int | None) -> Iterator[Progress]:
    """Yield a function that shows how far this rank is."""
    if callable(progress):
        yield progress
        return
    shown = progress and rank == 0
    with tqdm(total=total, unit=" samples", desc="rank 0", disable=not shown) as bar:

        def advance(done: int, _total: int | None) -> None:
            bar.update(done - bar.n)

        yield advance
