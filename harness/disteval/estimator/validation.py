"""Validation and prediction, by `disteval.evaluate` and `disteval.predict_all`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from disteval.by_sample import drawn
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator.distributed import inner, share_buffers
from disteval.estimator.loaders import Whole, whole
from disteval.estimator.records import LogBuffer, Record, averages, named_metrics, number
from disteval.evaluation.evaluate import evaluate
from disteval.evaluation.predict_all import predict_all
from disteval.metrics import Accuracy, BaseMetric
from disteval.metrics.base import Sums

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

_STEPS = "disteval.val_step"  # the name of our own metric among those of the user


def validate(
    runner: BaseRunner,
    loader: Any,
    metrics: Mapping[str, BaseMetric] | None = None,
    *,
    limit: int | None = None,
    stages: bool = False,
) -> Record:
    """Evaluate the runner's model over a loader's data set; every rank must call this.

    Args:
        runner: The runner.
        loader: A ``DataLoader`` over the whole data set, the same on every rank.
        metrics: Metrics by name; each gets ``add(scores, labels)``. None stands for those of the
            runner, and without these for accuracy where scores are those of classes.
        limit: The number of batches to evaluate, on all ranks together; None for all.
        stages: Whether this is a phase of a run, which calls hooks and uses the log buffer.
    """
    buffer = runner.log_buffer if stages else LogBuffer()
    asked = runner.metrics if metrics is None else named_metrics(metrics)
    parts, model, backend = whole(loader), inner(runner.model), runner.backend
    name, done = type(model).__name__, 0

    def predict(batch: Any, ids: Any) -> _Outputs:
        outputs = runner.step(parts.back(batch), train=False)
        if outputs["num_samples"] != len(ids):
            raise UsageError(
                f"{name}.val_step returned num_samples={outputs['num_samples']} for a batch of "
                f"{len(ids)} samples; it must count each once"
            )
        if asked and "scores" not in outputs:
            raise UsageError(
                f"{name}.val_step returned no scores, from which {', '.join(asked)} would follow; "
                f"let it return scores and labels, or leave the metrics out"
            )
        return _Outputs(outputs, len(ids))

    def count(outputs: _Outputs, batch: Any) -> Any:
        nonlocal done
        if stages:
            inputs = batch[0] if isinstance(batch, tuple) else batch
            runner.data_batch, runner.inner_iter = parts.back(inputs), done
            runner.call_hook("before_val_iter")
        report(outputs.step, buffer)
        if stages:
            runner.outputs = outputs.step
            runner.call_hook("after_val_iter")
        done += 1
        return outputs, asked is None

    given: dict[str, Any] = dict.fromkeys(
        asked or {}, lambda outputs, _: (outputs["scores"], outputs["labels"])
    )
    with evaluating(runner.model, backend):
        if stages:
            runner.call_hook("before_val_epoch")
        found = evaluate(
            predict, parts.samples, {_STEPS: _Steps(), **(asked or {})}, backend, parts.batch_size,
            collate=parts.collate, update={_STEPS: count, **given}, fixed_shape=False,
            even_calls=False, workers=parts.workers, progress=_progress(runner, parts),
            limit=None if limit is None else limit * parts.batch_size,
        )  # fmt: skip
    record = gather_record(runner, "val", [buffer.sums()], found.seconds, found.size)
    results = dict(found.metrics)
    counted = results.pop(_STEPS)
    if 0 < counted["unscored"] < found.size:
        raise UsageError(
            f"{counted['unscored']} of {found.size} samples have no scores of shape (batch, "
            f"classes) of {name}, and the others have; let every val_step return them, also for a "
            f"batch of one sample"
        )
    if asked is None and not counted["unscored"]:
        results = {"accuracy": counted["accuracy"], "correct": counted["correct"]}
    for key, value in _flat(results):
        if key in record:
            raise UsageError(
                f"{key!r} is the name of two entries of the record, of a metric's result and "
                f"of a variable in log_vars or another result; give one of them another name"
            )
        record[key] = value
    return record | ({"evaluated": found.size} if results else {})


def predict(runner: BaseRunner, loader: Any) -> Any:
    """Return the model's output for every sample on rank 0; every rank must call this."""
    parts, model = whole(loader), inner(runner.model)

    def output(batch: Any) -> Any:
        if hasattr(model, "predict_step"):
            return model.predict_step(parts.back(batch))
        outputs = runner.step(parts.back(batch), train=False)
        if "scores" not in outputs:
            raise UsageError(
                f"{type(model).__name__} has no predict_step(data), and its val_step returned no "
                f"scores; add one of them"
            )
        return outputs["scores"]

    with evaluating(model, runner.backend):
        return predict_all(
            output, parts.samples, runner.backend, parts.batch_size, collate=parts.collate,
            fixed_shape=False, even_calls=False, workers=parts.workers,
            progress=_progress(runner, parts),
        )  # fmt: skip


@contextmanager
def evaluating(model: Any, backend: BaseDistBackend) -> Iterator[None]:
    """Have every rank's model evaluate, with rank 0's buffers and without gradients.

    Afterwards the modes of modules and the random number generators are as they were.
    """
    module = inner(model)
    modes = [(each, each.training) for each in module.modules()]
    share_buffers(module, backend)
    module.eval()
    try:
        with drawn(kept=True), torch.no_grad():
            yield
    finally:
        for each, training in modes:
            each.training = training


def report(outputs: Mapping[str, Any], buffer: LogBuffer) -> int:
    """Add a step's variables and its loss to a buffer, and return its number of samples."""
    samples = int(outputs["num_samples"])
    variables = dict(outputs["log_vars"])
    if outputs.get("loss") is not None:
        variables.setdefault("loss", outputs["loss"])
    buffer.update(variables, samples)
    return samples


def gather_record(
    runner: BaseRunner, mode: str, sums: list[Any], seconds: float, samples: int | None = None
) -> Record:
    """Make the record of a phase, in which this rank took so many seconds, with one collective.

    ``samples`` is the number on all ranks; None adds up those of the runner's phase.
    """
    ranks = runner.backend.all_gather_object((runner.samples, seconds, sums))
    total = sum(rank[0] for rank in ranks) if samples is None else samples
    slowest = max(rank[1] for rank in ranks)
    epoch, iteration = runner.trained()
    record: Record = {"epoch": epoch, "iter": iteration, "mode": mode, "num_samples": total}
    record |= averages([part for rank in ranks for part in rank[2]])
    if mode == "train" and (rates := runner.current_lr()):
        record["lr"] = rates[0]
    record["samples_per_second"] = total / slowest if slowest else 0.0
    record["seconds"] = slowest
    return record


class _Outputs(dict[str, Any]):
    """What ranks compare of a step's outputs, with a row for each sample, and the outputs."""

    def __init__(self, step: Mapping[str, Any], rows: int) -> None:
        super().__init__({key: step[key] for key in ("scores", "labels") if key in step})
        for name, value in step["log_vars"].items():
            self[f"log_vars[{name!r}]"] = np.full(rows, number(name, value))
        if not self:
            self["num_samples"] = np.ones(rows)
        self.step = step


class _Steps(Accuracy):
    """Counts every sample, and the accuracy of those whose scores are those of classes."""

    def __init__(self) -> None:
        super().__init__(counts=True)

    def add(self, outputs: _Outputs, with_accuracy: bool) -> None:  # type: ignore[override]
        """Add a batch."""
        if with_accuracy and _are_of_classes(outputs.step):
            super().add(outputs["scores"], outputs["labels"])
        else:
            self._append(np.ones((int(outputs.step["num_samples"]), 1), np.uint8))

    def sums_of(self, column: Any) -> Sums:
        """Count the right samples, whose first bit is set, and the others without scores."""
        return np.array([np.sum(column > 1), np.sum(column == 1)], dtype=np.int64)

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Return the counts, and the accuracy over all samples."""
        correct, unscored = sums.tolist()
        return {"correct": correct, "unscored": unscored, "accuracy": correct / size}


def _are_of_classes(outputs: Mapping[str, Any]) -> bool:
    """Return whether a step's scores are those of classes, so that accuracy means something."""
    if "scores" not in outputs:
        return False
    scores, labels = torch.as_tensor(outputs["scores"]), torch.as_tensor(outputs["labels"])
    is_whole = not (labels.is_floating_point() or labels.is_complex())
    many = scores.ndim == 2 and scores.shape[1] > 1
    return is_whole and (many or (scores.ndim == 1 and not scores.is_floating_point()))


def _progress(runner: BaseRunner, parts: Whole) -> Any:
    tell = runner.on_progress
    if tell is None:
        return False
    size = parts.batch_size
    return lambda done, total: tell(-(-done // size), -(-(total or done) // size))


def _flat(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each result by the metric's name; several ones by that and their key."""
    for name, result in results.items():
        if not isinstance(result, Mapping):
            yield name, result
        elif len(result) == 1:
            yield name, next(iter(result.values()))
        else:
            yield from ((f"{name}_{key}", value) for key, value in result.items())
