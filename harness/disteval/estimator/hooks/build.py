"""Hooks made from a configuration: a dict, a hook, or None."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from disteval.arguments import did_you_mean
from disteval.errors import UsageError
from disteval.estimator.hooks.best import EarlyStoppingHook
from disteval.estimator.hooks.checkpoint import CheckpointHook
from disteval.estimator.hooks.evaluation import EvalHook
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.hooks.logger import TensorboardLoggerHook, TextLoggerHook
from disteval.estimator.hooks.loop import IterTimerHook, OptimizerHook
from disteval.estimator.hooks.lr import CosineLrHook, LrHook, PolyLrHook, StepLrHook

_HOOKS = (CheckpointHook, EarlyStoppingHook, EvalHook, IterTimerHook, OptimizerHook)
_LOGGERS = (TensorboardLoggerHook, TextLoggerHook)
HOOKS: dict[str, type[Hook]] = {hook.__name__: hook for hook in (*_HOOKS, *_LOGGERS)}
"""The hooks that a configuration may name as ``type``."""

POLICIES: dict[str, type[Hook]] = {
    "fixed": LrHook,
    "step": StepLrHook,
    "cosine": CosineLrHook,
    "CosineAnnealing": CosineLrHook,
    "poly": PolyLrHook,
}
"""The learning rate schedules that a configuration may name as ``policy``."""

Config = Mapping[str, Any] | Hook | None


def build(config: Config, kind: type[Hook] | None = None, **defaults: Any) -> Hook | None:
    """Make a hook from a dict of its arguments and, unless ``kind`` is given, its ``type``.

    The type is a name of `HOOKS` or a subclass of `Hook`. A hook is returned as it is.

    Raises:
        UsageError: An entry of the configuration is not known, or can't be used.
    """
    if config is None or isinstance(config, Hook):
        return config
    if not isinstance(config, Mapping):
        raise UsageError(f"a hook is given as a dict or a Hook, not {config!r}")
    arguments = {str(key): value for key, value in config.items()}
    named = arguments.pop("type", kind)
    if isinstance(named, str):
        named = _known(named, HOOKS, "hook type")
    if not (isinstance(named, type) and issubclass(named, Hook)):
        raise UsageError(
            f"the hook {dict(config)!r} needs a 'type': a subclass of Hook, or one of "
            f"{', '.join(HOOKS)}"
        )
    arguments = defaults | arguments
    parameters = inspect.signature(named).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for key in arguments:
        if key not in parameters and not takes_any:
            names = ", ".join(parameters) or "no arguments"
            raise UsageError(f"{named.__name__} does not know {key!r}; it knows {names}")
    try:
        return named(**arguments)
    except TypeError as error:
        raise UsageError(f"{named.__name__} can't be made of {arguments}: {error}") from error


def build_lr(config: Config, **defaults: Any) -> Hook | None:
    """Make the hook of a learning rate schedule from a dict with ``policy``."""
    if not isinstance(config, Mapping) or "type" in config:
        return build(config)
    arguments = dict(config)
    policy = arguments.pop("policy", None)
    return build(arguments, _known(policy, POLICIES, "learning rate policy"), **defaults)


def build_loggers(config: Config) -> list[Hook]:
    """Make the loggers of ``dict(interval=10, hooks=[dict(type='TextLoggerHook'), ...])``."""
    if not isinstance(config, Mapping):
        hook = build(config)
        return [] if hook is None else [hook]
    unknown = [key for key in config if key not in ("interval", "hooks")]
    hooks = config.get("hooks", [{"type": "TextLoggerHook"}])
    if unknown or not isinstance(hooks, Sequence):
        raise UsageError(f"log_config knows interval and hooks, a list; not {dict(config)!r}")
    interval = {"interval": config["interval"]} if "interval" in config else {}
    return [hook for entry in hooks if (hook := build(entry, **interval)) is not None]


def _known(name: Any, known: Mapping[str, Any], what: str) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"{what} {name!r} is not known.{hint} Known are: {', '.join(known)}.")
    return known[name]
