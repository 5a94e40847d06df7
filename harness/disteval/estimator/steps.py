"""One step of a model, and the checks of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disteval.errors import UsageError
from disteval.estimator.context import Context
from disteval.estimator.distributed import goes_past_reducer, inner
from disteval.estimator.log_buffer import LogBuffer, number

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
    if "train" in modes and context.world_size > 1 and goes_past_reducer(model):
        return (
            f"{name}.train_step would go past DistributedDataParallel, so gradients would not be "
            f"averaged; wrap the model with disteval.estimator.distributed.distribute instead"
        )
    return None


def train_step(context: Context, data: Any, **kwargs: Any) -> dict[str, Any]:
    """Run a training step of a runner's model.

    Returns:
        ``loss``, a tensor; ``log_vars``; ``num_samples``; and all else that the step returned.

    Raises:
        UsageError: Something is missing from the step's result.
    """
    model = context.model
    if context.batch_processor is not None:
        outputs = context.batch_processor(model, data, train_mode=True, **kwargs)
        return _checked(outputs, "batch_processor", loss=True)
    # A wrapper that has a step of its own averages the gradients.
    owner = model if hasattr(model, "train_step") else inner(model)
    outputs = owner.train_step(data, context.optimizer, **kwargs)
    return _checked(outputs, f"{type(inner(model)).__name__}.train_step", loss=True)


def val_step(context: Context, data: Any, **kwargs: Any) -> dict[str, Any]:
    """Run a validation step on the model itself, in which no rank waits for another.

    Returns:
        ``log_vars``; ``num_samples``; ``scores`` and ``labels`` where there are both; and all else
        that the step returned.

    Raises:
        UsageError: Something is missing from the step's result.
    """
    model = inner(context.model)
    if context.batch_processor is not None:
        outputs = context.batch_processor(model, data, train_mode=False, **kwargs)
        return _checked(outputs, "batch_processor", loss=False)
    outputs = model.val_step(data, context.optimizer, **kwargs)
    return _checked(outputs, f"{type(model).__name__}.val_step", loss=False)


def report(outputs: Mapping[str, Any], buffer: LogBuffer) -> int:
    """Add a step's variables and its loss to a buffer, and return its number of samples."""
    samples = int(outputs["num_samples"])
    variables = dict(outputs["log_vars"])
    if outputs.get("loss") is not None:
        variables.setdefault("loss", outputs["loss"])
    buffer.update(variables, samples)
    return samples


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
