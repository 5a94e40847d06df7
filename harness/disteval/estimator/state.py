"""A runner's whole state, from which training goes on as if it had not been interrupted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from disteval.errors import WeightsError
from disteval.estimator import rng
from disteval.estimator.checkpoint import load_weights, weights_of
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.place import Place

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner


def collect(
    runner: BaseRunner, *, optimizer: bool = True, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state in plain containers and tensors; every rank must call it.

    Ranks differ in their random number generators alone, which are gathered: the state holds those
    of all ranks. Weights and buffers are this rank's; rank 0's are what a checkpoint keeps.
    """
    epoch, iteration = runner.trained()
    place = runner.place()
    own = {"now": runner.generators(), "passes": place.starts}
    state = {
        "meta": {**runner.meta, **(meta or {}), "epoch": epoch, "iter": iteration},
        "state_dict": weights_of(runner.model),
        "epoch": epoch,
        "iter": iteration,
        "hooks": {name: hook.state_dict() for name, hook in _named(runner.hooks).items()},
        "rng": runner.backend.all_gather_object(own),
        "sampler_seed": place.sampler_seed,
        "position": place.position(),
    }
    if optimizer and runner.optimizer is not None:
        states = {name: each.state_dict() for name, each in runner.optimizers().items()}
        state["optimizer"] = copy.deepcopy(states)
    return state


def put_back(runner: BaseRunner, state: Mapping[str, Any], origin: str, optimizer: bool) -> Place:
    """Set a runner to a state.

    Returns:
        The place from which the next run goes on.

    Raises:
        WeightsError: The state is of another model, or lacks something.
    """
    lacking = [
        key for key in ("state_dict", "epoch", "iter", "rng", "position") if key not in state
    ]
    if lacking:
        raise WeightsError(
            f"{origin} lacks {', '.join(lacking)}, so training can't go on from it; "
            f"load_checkpoint takes its weights alone"
        )
    optimizers = runner.optimizers() if optimizer else {}
    states = state.get("optimizer", {})
    if set(optimizers) - set(states):
        raise WeightsError(
            f"{origin} lacks the state of an optimizer: it has {list(states) or 'none'}, and "
            f"the runner {list(optimizers)}; resume_optimizer=False goes on with a fresh one"
        )
    load_weights(runner.model, state["state_dict"], origin, strict=True)
    for name, each in optimizers.items():
        try:
            each.load_state_dict(copy.deepcopy(states[name]))
        except ValueError as error:
            raise WeightsError(f"{origin} does not fit the optimizer {name!r}: {error}") from error
    runner.epoch, runner.iter = state["epoch"], state["iter"]
    _put_back_hooks(runner, state.get("hooks", {}))
    own = _own_generators(runner, state)
    starts = None if own is None else own["passes"]
    return Place.of(state["position"], starts, state.get("sampler_seed"))


def set_generators(runner: BaseRunner, state: Mapping[str, Any]) -> None:
    """Set this rank's generators: as they were, or seeded where the world size is another."""
    own = _own_generators(runner, state)
    if own is not None:
        rng.restore(own["now"])
        return
    seed = state.get("meta", {}).get("seed", state.get("sampler_seed")) or 0
    rng.derive(int(seed), state["iter"], runner.rank)


def _own_generators(runner: BaseRunner, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a state keeps of this rank's generators; None for another world size."""
    ranks = state["rng"]
    return ranks[runner.rank] if len(ranks) == runner.world_size else None


def _put_back_hooks(runner: BaseRunner, states: Mapping[str, Any]) -> None:
    hooks = _named(runner.hooks)
    for name, state in states.items():
        if name in hooks:
            hooks[name].load_state_dict(state)
        elif state:
            runner.logger.warning("the checkpoint's state of %s is for a hook not here", name)


def _named(hooks: list[Hook]) -> dict[str, Hook]:
    """Name hooks by their class, and number those of one class."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name, turn = type(hook).__name__, 2
        while name in named:
            name, turn = f"{type(hook).__name__}#{turn}", turn + 1
        named[name] = hook
    return named
