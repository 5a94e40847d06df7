"""A pass over validation data on every rank, and the exact result over all ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import rng, steps
from disteval.estimator.context import Context
from disteval.estimator.distributed import inner, share_buffers
from disteval.estimator.log_buffer import LogBuffer
from disteval.estimator.records import Record, gather_record
from disteval.metrics import Accuracy, BaseMetric, MetricGroup


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
    for another before the end. Training is not affected: the model's mode and the random number
    generators are put back.

    Args:
        context: The runner.
        loader: This rank's batches.
        metrics: Metrics by name; each gets ``add(scores, labels)``. None stands for accuracy.
        limit: The largest number of batches; None for all.
        stages: Whether this is a phase of a run, which calls hooks and uses the log buffer.
        **kwargs: Arguments of each ``val_step``.

    Returns:
        The record: see `disteval.estimator.records`.

    Raises:
        UsageError: On every rank, when there are no samples at all.
    """
    buffer = context.log_buffer if stages else LogBuffer()
    chosen = {"accuracy": Accuracy(counts=True)} if metrics is None else metrics
    group = MetricGroup(chosen, context.backend)
    group.reset()
    samples = scored = 0
    total = len(loader) if limit is None else min(limit, len(loader))
    with evaluating(context.model, context.backend):
        if stages:
            context.call_hook("before_val_epoch")
        begin = time.perf_counter()
        for done, data in enumerate(itertools.islice(loader, limit)):
            if stages:
                context.data_batch, context.inner_iter = data, done
                context.call_hook("before_val_iter")
            outputs = steps.val_step(context, data, **kwargs)
            samples += steps.report(outputs, buffer)
            if "scores" in outputs:
                group.add(outputs["scores"], outputs["labels"])
                scored += len(outputs["labels"])
            if stages:
                context.outputs = outputs
                context.call_hook("after_val_iter")
            if context.on_progress is not None:
                context.on_progress(done + 1, total)
    seconds = time.perf_counter() - begin
    record, counts = gather_record(context, "val", buffer, samples, seconds, scored)
    if not record["num_samples"]:
        raise UsageError("no rank has a validation sample; give a loader that is not empty")
    if sum(counts):
        record |= _flat(group.compute(), plain=metrics is None) | {"evaluated": sum(counts)}
    return record


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
    try:
        with rng.preserved(), torch.no_grad():
            yield
    finally:
        for each, training in modes:
            each.training = training


def _flat(results: Mapping[str, Any], *, plain: bool) -> dict[str, Any]:
    """Name each result by its metric, and results of several values by the metric and the key."""
    if plain:
        found = results["accuracy"]
        return {"accuracy": found["top1"], "correct": found["correct_top1"]}
    flat: dict[str, Any] = {}
    for name, result in results.items():
        if not isinstance(result, Mapping):
            flat[name] = result
        elif len(result) == 1:
            flat[name] = next(iter(result.values()))
        else:
            flat |= {f"{name}_{key}": value for key, value in result.items()}
    return flat
