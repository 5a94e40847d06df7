"""Hooks, which act at the stages of a run; their base is `hook.Hook`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from disteval.arguments import did_you_mean
from disteval.errors import UsageError
from disteval.estimator.hooks.checkpoint import BestWeightsHook, CheckpointHook
from disteval.estimator.hooks.hook import PRIORITIES, Hook
from disteval.estimator.hooks.logger import TextLoggerHook
from disteval.estimator.hooks.lr import CosineLrHook, LrHook, StepLrHook
from disteval.estimator.hooks.optimizer import OptimizerHook

__all__ = [
    "PRIORITIES",
    "BestWeightsHook",
    "CheckpointHook",
    "CosineLrHook",
    "Hook",
    "LrHook",
    "OptimizerHook",
    "StepLrHook",
    "TextLoggerHook",
]

_TYPES: dict[str, type[Hook]] = {
    hook.__name__: hook for hook in (BestWeightsHook, CheckpointHook, OptimizerHook, TextLoggerHook)
}
POLICIES: dict[str, type[Hook]] = {
    "fixed": LrHook,
    "step": StepLrHook,
    "cosine": CosineLrHook,
    "CosineAnnealing": CosineLrHook,
}

Config = Mapping[str, Any] | Hook | None


def build(config: Config, kind: type[Hook] | None = None, **defaults: Any) -> Hook | None:
    """Make a hook from a dict of its arguments and, unless ``kind`` is given, its ``type``.

    A dict with a ``policy`` is that of a learning rate. A `Hook` and None are returned.

    Raises:
        UsageError: An entry of the dict is not known.
    """
    if config is None or isinstance(config, Hook):
        return config
    if not isinstance(config, Mapping):
        raise UsageError(f"a hook is given as a dict or a Hook, not {config!r}")
    arguments = {str(key): value for key, value in config.items()}
    if kind is LrHook and "type" not in arguments:
        kind = _known(arguments.pop("policy", None), POLICIES, "learning rate policy")
    named = arguments.pop("type", kind)
    if isinstance(named, str):
        named = _known(named, _TYPES, "hook type")
    if not (isinstance(named, type) and issubclass(named, Hook)):
        raise UsageError(
            f"the hook {dict(config)!r} needs a 'type': a subclass of Hook, or one of "
            f"{', '.join(_TYPES)}"
        )
    arguments = defaults | arguments
    try:
        return named(**arguments)
    except TypeError as error:
        names = ", ".join(inspect.signature(named).parameters) or "no arguments"
        raise UsageError(
            f"{named.__name__} can't be made of {arguments}: {error}; it knows {names}"
        ) from error


def _known(name: Any, known: Mapping[str, Any], what: str) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"{what} {name!r} is not known.{hint} Known are: {', '.join(known)}.")
    return known[name]
