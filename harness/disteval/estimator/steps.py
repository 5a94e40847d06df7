"""The steps of a model: one on a batch, and a pass of them over validation data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from disteval import traces
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator.context import Context
from disteval.estimator.distributed import inner, share_buffers
from disteval.estimator.records import LogBuffer, Record, averages, named_metrics, number
from disteval.metrics import Accuracy, BaseMetric, MetricGroup

_NEEDED = {
    "log_vars": "a dict of numbers to report",
    "num_samples": "the number of samples in the batch",
}


def why_not(context: Context, modes: set[str]) -> str | None:
    """Return why a runner's model can't run in these modes; None where it can."""
    model = context.model
    if context.batch_processor is not None:
        return None
    name = type(inner(model)).__name__
    for mode in sorted(modes):
        if not callable(getattr(inner(model), f"{mode}_step", None)):
            return f"{name} has no {mode}_step(data, optimizer); add one, or give a batch_processor"
    past = isinstance(model, DistributedDataParallel) and not hasattr(type(model), "train_step")
    if "train" in modes and context.world_size > 1 and past:
        return (
            f"{name}.train_step would go past DistributedDataParallel, so gradients would not be "
            f"averaged; wrap the model with disteval.estimator.distributed.distribute instead"
        )
    return None


def step(context: Context, data: Any, *, train: bool, **kwargs: Any) -> dict[str, Any]:
    """Run a step of a runner's model, and return its result if nothing is missing from it.

    Validation runs on the model itself, in which no rank waits for another.
    """
    model = context.model if train else inner(context.model)
    origin, name = "batch_processor", "train_step" if train else "val_step"
    with traces.span("compute", name), _precision(context, train):
        if context.batch_processor is not None:
            outputs = context.batch_processor(model, data, train_mode=train, **kwargs)
        else:
            # A wrapper that has a step of its own averages the gradients.
            owner = model if hasattr(model, name) else inner(model)
            origin = f"{type(inner(model)).__name__}.{name}"
            outputs = getattr(owner, name)(data, context.optimizer, **kwargs)
    return _checked(outputs, origin, loss=train)


def _precision(context: Context, train: bool) -> AbstractContextManager[Any]:
    if context.autocast is None or not train:
        return nullcontext()
    device = next((each.device.type for each in context.model.parameters()), "cpu")
    autocast: AbstractContextManager[Any] = torch.autocast(device, torch.bfloat16)
    return autocast


def report(outputs: Mapping[str, Any], buffer: LogBuffer) -> int:
    """Add a step's variables and its loss to a buffer, and return its number of samples."""
    samples = int(outputs["num_samples"])
    variables = dict(outputs["log_vars"])
    if outputs.get("loss") is not None:
        variables.setdefault("loss", outputs["loss"])
    buffer.update(variables, samples)
    return samples


def validate(
    context: Context,
    loader: Any,
    metrics: Mapping[str, BaseMetric] | None = None,
    *,
    limit: int | None = None,
    stages: bool = False,
    **kwargs: Any,
) -> Record:
    """Evaluate the runner's model; every rank must call this, each with its share of the data.

    All ranks evaluate with rank 0's buffers. Shares may differ in size or be empty: no rank waits
    for another before the end. Training is not affected.

    Args:
        context: The runner.
        loader: This rank's batches.
        metrics: Metrics by name; each gets ``add(scores, labels)``. None stands for those of the
            runner, and without these for accuracy where scores are those of classes.
        limit: The largest number of batches; None for all.
        stages: Whether this is a phase of a run, which calls hooks and uses the log buffer.
        **kwargs: Arguments of each ``val_step``.

    Raises:
        UsageError: On every rank, when there are no samples at all, or metrics were given and
            steps returned no scores and labels for them; or some steps returned scores of classes
            and others did not, or fewer scores than samples; or two entries of the record would
            have one name.
    """
    buffer = context.log_buffer if stages else LogBuffer()
    asked = context.metrics if metrics is None else named_metrics(metrics)
    chosen = {"accuracy": Accuracy(counts=True)} if asked is None else asked
    group = MetricGroup(chosen, context.backend)
    group.reset()
    samples = scored = unscored = short = 0
    total = len(loader) if limit is None else min(limit, len(loader))
    with evaluating(context.model, context.backend):
        if stages:
            context.call_hook("before_val_epoch")
        begin = time.perf_counter()
        for done, data in enumerate(traces.loading(itertools.islice(loader, limit))):
            if stages:
                context.data_batch, context.inner_iter = data, done
                context.call_hook("before_val_iter")
            outputs = step(context, data, train=False, **kwargs)
            counted = report(outputs, buffer)
            samples += counted
            if "scores" in outputs and (asked is not None or _are_of_classes(outputs)):
                with traces.span("metric", "add"):
                    group.add(outputs["scores"], outputs["labels"])
                scored += len(outputs["labels"])
                short += max(counted - len(outputs["labels"]), 0)
            else:
                unscored += 1
            if stages:
                context.outputs = outputs
                context.call_hook("after_val_iter")
            if context.on_progress is not None:
                context.on_progress(done + 1, total)
    seconds = time.perf_counter() - begin
    note = (scored, unscored, short)
    record, notes = gather_record(context, "val", buffer, samples, seconds, note)
    evaluated, lacking, missing = (sum(counts) for counts in zip(*notes, strict=True))
    if not record["num_samples"]:
        raise UsageError("no rank has a validation sample; give a loader that is not empty")
    if asked and lacking:
        raise UsageError(
            f"{lacking} batches of {type(inner(context.model)).__name__} have no scores, from "
            f"which {', '.join(asked)} would follow; let val_step return scores and labels, or "
            f"leave the metrics out"
        )
    if asked is None and evaluated and lacking:
        raise UsageError(
            f"{lacking} batches of {type(inner(context.model)).__name__} have no scores of shape "
            f"(batch, classes), and the others have; let every val_step return them, also for a "
            f"batch of one sample"
        )
    if missing:
        raise UsageError(
            f"{missing} of {record['num_samples']} samples have no scores and labels of "
            f"{type(inner(context.model)).__name__}, whose batches have fewer than their "
            f"num_samples says; let val_step return them for every sample"
        )
    if evaluated and chosen:
        for name, value in _flat(group.compute(), plain=asked is None):
            if name in record:
                raise UsageError(
                    f"{name!r} is the name of two entries of the record, of a metric's result and "
                    f"of a variable in log_vars or another result; give one of them another name"
                )
            record[name] = value
        record["evaluated"] = evaluated
    return record


def gather_record(
    context: Context, mode: str, buffer: LogBuffer, samples: int, seconds: float, note: Any = None
) -> tuple[Record, list[Any]]:
    """Make the record of a phase with one collective, which also gathers every rank's note."""
    ranks = context.backend.all_gather_object((samples, seconds, note, buffer.sums()))
    total, slowest = sum(rank[0] for rank in ranks), max(rank[1] for rank in ranks)
    epoch, iteration = context.trained()
    record: Record = {"epoch": epoch, "iter": iteration, "mode": mode, "num_samples": total}
    record |= averages([rank[3] for rank in ranks])
    if mode == "train" and context.optimizer is not None:
        record["lr"] = context.first_lr()
    record["samples_per_second"] = total / slowest if slowest else 0.0
    record["seconds"] = slowest
    return record, [rank[2] for rank in ranks]


@contextmanager
def evaluating(model: Any, backend: BaseDistBackend) -> Iterator[None]:
    """Prepare every rank's model to evaluate alike, and afterwards restore what training uses.

    Inside, gradients are off and modules are in evaluation mode with rank 0's buffers. Afterwards
    the modes of modules and the random number generators are as they were.
    """
    module = inner(model)
    modes = [(each, each.training) for each in module.modules()]
    share_buffers(module, backend)
    module.eval()
    generators = rng.capture()
    try:
        with torch.no_grad():
            yield
    finally:
        rng.restore(generators)
        for each, training in modes:
            each.training = training


def _are_of_classes(outputs: Mapping[str, Any]) -> bool:
    """Return whether a step's scores are those of classes, so that accuracy means something."""
    scores, labels = torch.as_tensor(outputs["scores"]), torch.as_tensor(outputs["labels"])
    whole = not (labels.is_floating_point() or labels.is_complex())
    many = scores.ndim == 2 and scores.shape[1] > 1
    return whole and (many or (scores.ndim == 1 and not scores.is_floating_point()))


def _flat(results: Mapping[str, Any], *, plain: bool) -> Iterator[tuple[str, Any]]:
    """Yield each result by the metric's name; several ones by that and their key."""
    if plain:
        found = results["accuracy"]
        yield from {"accuracy": found["top1"], "correct": found["correct_top1"]}.items()
        return
    for name, result in results.items():
        if not isinstance(result, Mapping):
            yield name, result
        elif len(result) == 1:
            yield name, next(iter(result.values()))
        else:
            yield from ((f"{name}_{key}", value) for key, value in result.items())


def _checked(outputs: Any, origin: str, *, loss: bool) -> dict[str, Any]:
    needed = ({"loss": "a tensor with one element"} if loss else {}) | _NEEDED
    if not isinstance(outputs, Mapping):
        raise UsageError(
            f"{origin} returned {type(outputs).__name__}; it must return a dict with "
            f"{', '.join(needed)}"
        )
    for key, meaning in needed.items():
        if outputs.get(key) is None:
            has = ", ".join(map(str, outputs)) or "nothing"
            raise UsageError(f"{origin} returned a dict without {key!r}, {meaning}; it has {has}")
    if loss and not callable(getattr(outputs["loss"], "backward", None)):
        raise UsageError(f"the loss of {origin} must be a tensor, not {outputs['loss']!r}")
    if not isinstance(outputs["log_vars"], Mapping):
        raise UsageError(f"log_vars of {origin} must be a dict, not {outputs['log_vars']!r}")
    samples = number("num_samples", outputs["num_samples"])
    if samples < 0 or samples != int(samples):
        raise UsageError(f"num_samples of {origin} must be a number of samples, not {samples}")
    if ("scores" in outputs) != ("labels" in outputs):
        raise UsageError(f"{origin} returned only one of scores and labels; accuracy needs both")
    return dict(outputs)
