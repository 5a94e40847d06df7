"""A pass over validation data on every rank, and the exact result over all of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import rng, steps
from disteval.estimator.distributed import inner, share_buffers
from disteval.estimator.log_buffer import LogBuffer
from disteval.estimator.records import Record, gather_record
from disteval.metrics import Accuracy, BaseMetric, MetricGroup

if TYPE_CHECKING:
    from disteval.estimator.phases import Phases


def validate(
    runner: Phases,
    loader: Any,
    metrics: Mapping[str, BaseMetric] | None = None,
    *,
    limit: int | None = None,
    stages: bool = False,
    **kwargs: Any,
) -> Record:
    """Evaluate the runner's model; every rank must call it, each with its share of the data.

    All ranks evaluate rank 0's buffers. Shares may differ in size or be empty: no rank waits for
    another before the end. Training goes on as if nothing had happened: the model's mode and the
    random number generators are put back.

    Args:
        runner: Its model, hooks and backend are used.
        loader: This rank's batches.
        metrics: Metrics by name; each gets ``add(scores, labels)``. None stands for accuracy.
        limit: Batches at most; None for all.
        stages: Whether hooks are called and the runner's log buffer is used, as in a phase.
        **kwargs: For each ``val_step``.

    Returns:
        The record: see `disteval.estimator.records`.

    Raises:
        UsageError: On every rank, when there are no samples at all.
    """
    call = runner.call_hook if stages else _nothing
    buffer = runner.log_buffer if stages else LogBuffer()
    chosen = {"accuracy": Accuracy(counts=True)} if metrics is None else metrics
    group = MetricGroup(chosen, runner.backend)
    group.reset()
    samples = scored = 0
    total = len(loader) if limit is None else min(limit, len(loader))
    with evaluating(runner.model, runner.backend):
        call("before_val_epoch")
        begin = time.perf_counter()
        for done, data in enumerate(itertools.islice(loader, limit)):
            if stages:
                runner.data_batch, runner.inner_iter = data, done
            call("before_val_iter")
            outputs = steps.val_step(
                runner.model, runner.batch_processor, data, runner.optimizer, **kwargs
            )
            samples += steps.report(outputs, buffer)
            if "scores" in outputs:
                group.add(outputs["scores"], outputs["labels"])
                scored += len(outputs["labels"])
            if stages:
                runner.outputs = outputs
            call("after_val_iter")
            if stages and runner.on_progress is not None:
                runner.on_progress(done + 1, total)
    seconds = time.perf_counter() - begin
    record, counts = gather_record(runner, "val", buffer, samples, seconds, scored)
    if not record["num_samples"]:
        raise UsageError("no rank has a validation sample; give a loader that is not empty")
    if sum(counts):
        record |= _flat(group.compute(), plain=metrics is None) | {"evaluated": sum(counts)}
    return record


@contextmanager
def evaluating(model: Any, backend: BaseDistBackend) -> Iterator[None]:
    """Have every rank's model ready to evaluate, and alike; then put back what training uses.

    Inside, gradients are off and modules are in evaluation mode with rank 0's buffers. Afterwards
    modules are in the mode in which they were, and the random number generators too.
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


def _nothing(_stage: str) -> None:
    pass


def _flat(results: Mapping[str, Any], *, plain: bool) -> dict[str, Any]:
    """Name each result by its metric; of those with several, also by the result's own name."""
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
