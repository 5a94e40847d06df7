"""Hooks from what a configuration says: a dict, a hook, or nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from disteval.arguments import did_you_mean
from disteval.errors import UsageError
from disteval.estimator.hooks.checkpoint import CheckpointHook
from disteval.estimator.hooks.evaluation import EvalHook
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.hooks.logger import TensorboardLoggerHook, TextLoggerHook
from disteval.estimator.hooks.lr import CosineLrHook, FixedLrHook, LrHook, PolyLrHook, StepLrHook
from disteval.estimator.hooks.optimizer import OptimizerHook
from disteval.estimator.hooks.sampler_seed import DistSamplerSeedHook
from disteval.estimator.hooks.timer import IterTimerHook

HOOKS: dict[str, type[Hook]] = {
    hook.__name__: hook
    for hook in (
        CheckpointHook,
        DistSamplerSeedHook,
        EvalHook,
        IterTimerHook,
        OptimizerHook,
        TensorboardLoggerHook,
        TextLoggerHook,
    )
}
"""The hooks that a configuration may name as ``type``."""

POLICIES: dict[str, type[LrHook]] = {
    "fixed": FixedLrHook,
    "step": StepLrHook,
    "cosine": CosineLrHook,
    "CosineAnnealing": CosineLrHook,
    "poly": PolyLrHook,
}
"""The learning rate schedules that a configuration may name as ``policy``."""

Config = Mapping[str, Any] | Hook | None


def build(config: Config, kind: type[Hook] | None = None, **defaults: Any) -> Hook | None:
    """Make a hook.

    Args:
        config: A hook is returned as it is, and None as None. A dict holds the arguments of
            ``kind``, or of its ``type``: a name of `HOOKS` or a subclass of `Hook`.
        kind: The hook that a dict without ``type`` is for.
        **defaults: Arguments that the dict may override.

    Raises:
        UsageError: The type or an argument is not known, or an argument can't be.
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
    return _made(named, defaults | arguments)


def build_lr(config: Config, **defaults: Any) -> Hook | None:
    """Make the hook of a learning rate schedule, a dict with ``policy``; see `build`."""
    if not isinstance(config, Mapping) or "type" in config:
        return build(config)
    arguments = {str(key): value for key, value in config.items()}
    policy = arguments.pop("policy", None)
    return _made(_known(policy, POLICIES, "learning rate policy"), defaults | arguments)


def build_loggers(config: Mapping[str, Any] | Hook | None) -> list[Hook]:
    """Make the loggers of ``dict(interval=10, hooks=[dict(type='TextLoggerHook'), …])``.

    Raises:
        UsageError: A key or a type is not known.
    """
    if config is None or isinstance(config, Hook):
        return [] if config is None else [config]
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


def _made(kind: type[Hook], arguments: Mapping[str, Any]) -> Hook:
    known = _parameters(kind)
    for key in arguments:
        if known is not None and key not in known:
            raise UsageError(
                f"{kind.__name__} does not know {key!r}; it knows {', '.join(known) or 'nothing'}"
            )
    try:
        return kind(**arguments)
    except TypeError as error:
        raise UsageError(f"{kind.__name__} can't be made of {dict(arguments)}: {error}") from error


def _parameters(kind: type[Hook]) -> list[str] | None:
    """The names that a hook takes, those that its bases take by ``**options`` too; None for any."""
    found: list[str] = []
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return list(dict.fromkeys(found))
    return list(dict.fromkeys(found)) if not found else None
