"""The parts of a training's state, and how they are taken back from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from disteval.errors import WeightsError
from disteval.estimator.checkpoint import load_weights

_NEEDED = ("state_dict", "epoch", "iter", "rng", "position")


def resume_model(
    model: Any, optimizers: Mapping[str, Any], state: Mapping[str, Any], origin: str
) -> None:
    """Give a model and its optimizers the state that a checkpoint holds.

    Args:
        model: The model, which may be wrapped for several ranks.
        optimizers: The optimizers by name.
        state: The content of the checkpoint.
        origin: The name of the checkpoint, for messages.

    Raises:
        WeightsError: The checkpoint lacks something, or does not fit.
    """
    lacking = [key for key in _NEEDED if key not in state]
    if lacking:
        raise WeightsError(
            f"{origin} lacks {', '.join(lacking)}, so training can't be resumed from it; "
            f"load_checkpoint takes its weights alone"
        )
    states = state.get("optimizer", {})
    if set(optimizers) - set(states):
        raise WeightsError(
            f"{origin} lacks the state of an optimizer: it has {list(states)}, and the runner "
            f"{list(optimizers)}; resume_optimizer=False continues with a fresh one"
        )
    load_weights(model, state["state_dict"], origin, strict=True)
    for name, each in optimizers.items():
        try:
            each.load_state_dict(copy.deepcopy(states[name]))
        except ValueError as error:
            raise WeightsError(f"{origin} does not fit the optimizer {name!r}: {error}") from error


def name_by_class(hooks: Iterable[Any]) -> dict[str, Any]:
    """Return hooks by the names of their classes, with a number from the second of a class on."""
    named: dict[str, Any] = {}
    for hook in hooks:
        name, turn = type(hook).__name__, 2
        while name in named:
            name, turn = f"{type(hook).__name__}#{turn}", turn + 1
        named[name] = hook
    return named
