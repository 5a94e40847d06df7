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
from disteval.estimator.hooks.hook import Hook, priority_of
from disteval.estimator.hooks.logger import TextLoggerHook
from disteval.estimator.hooks.lr import CosineLrHook, LrHook, PolyLrHook, StepLrHook
from disteval.estimator.hooks.optimizer import IterTimerHook, OptimizerHook

_HOOKS: dict[str, type[Hook]] = {
    hook.__name__: hook
    for hook in (
        CheckpointHook, EarlyStoppingHook, EvalHook, IterTimerHook, OptimizerHook, TextLoggerHook,
    )
}  # fmt: skip
_POLICIES: dict[str, type[Hook]] = {
    "fixed": LrHook,
    "step": StepLrHook,
    "cosine": CosineLrHook,
    "CosineAnnealing": CosineLrHook,
    "poly": PolyLrHook,
}

Config = Mapping[str, Any] | Hook | None


def hooks_of(
    by_epoch: bool,
    lr: Config,
    momentum: Hook | None,
    optimizer: Config,
    checkpoint: Config,
    timer: Config,
    loggers: Config,
    customs: Any,
) -> list[tuple[Hook, str | int]]:
    """Return the hooks of `BaseRunner.register_training_hooks`, each with its priority."""
    if momentum is not None and not isinstance(momentum, Hook):
        raise UsageError(f"momentum_config must be a Hook or None, not {momentum!r}")
    found: list[tuple[Hook | None, str | int]] = [
        (_lr(lr, by_epoch), "VERY_HIGH"),
        (momentum, "HIGH"),
        (_build(optimizer, OptimizerHook), "ABOVE_NORMAL"),
        (_build(checkpoint, CheckpointHook, by_epoch=by_epoch), "BELOW_NORMAL"),
        (_build(timer, IterTimerHook), "LOW"),
    ]
    found += [(hook, "VERY_LOW") for hook in _loggers(loggers)]
    for config in customs if isinstance(customs, list) else [customs]:
        settings = dict(config) if isinstance(config, Mapping) else {}
        priority = settings.pop("priority", "NORMAL")
        found.append((_build(settings or config), priority_of(priority)))
    return [(hook, priority) for hook, priority in found if hook is not None]


def _build(config: Config, kind: type[Hook] | None = None, **defaults: Any) -> Hook | None:
    """Make a hook from a dict of its arguments and, unless ``kind`` is given, its ``type``."""
    if config is None or isinstance(config, Hook):
        return config
    if not isinstance(config, Mapping):
        raise UsageError(f"a hook is given as a dict or a Hook, not {config!r}")
    arguments = {str(key): value for key, value in config.items()}
    named = arguments.pop("type", kind)
    if isinstance(named, str):
        named = _known(named, _HOOKS, "hook type")
    if not (isinstance(named, type) and issubclass(named, Hook)):
        raise UsageError(
            f"the hook {dict(config)!r} needs a 'type': a subclass of Hook, or one of "
            f"{', '.join(_HOOKS)}"
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


def _lr(config: Config, by_epoch: bool) -> Hook | None:
    """Make the hook of a learning rate schedule from a dict with ``policy``."""
    if not isinstance(config, Mapping) or "type" in config:
        return _build(config)
    arguments = dict(config)
    policy = arguments.pop("policy", None)
    kind = _known(policy, _POLICIES, "learning rate policy")
    return _build(arguments, kind, by_epoch=by_epoch)


def _loggers(config: Config) -> list[Hook | None]:
    """Make the loggers of ``dict(interval=10, hooks=[dict(type='TextLoggerHook'), ...])``."""
    if not isinstance(config, Mapping):
        return [_build(config)]
    unknown = [key for key in config if key not in ("interval", "hooks")]
    hooks = config.get("hooks", [{"type": "TextLoggerHook"}])
    if unknown or not isinstance(hooks, Sequence):
        raise UsageError(f"log_config knows interval and hooks, a list; not {dict(config)!r}")
    interval = {"interval": config["interval"]} if "interval" in config else {}
    return [_build(entry, **interval) for entry in hooks]


def _known(name: Any, known: Mapping[str, Any], what: str) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"{what} {name!r} is not known.{hint} Known are: {', '.join(known)}.")
    return known[name]
