"""Random numbers by sample: the same for a sample on every rank, in every batch, in any order."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_count
from disteval.coverage import GAMMA, mix
from disteval.errors import UsageError

_PARSING = Lock()
"""Python 3.11 may fail to parse the signatures of functions of C, such as np.array, in threads."""


def seeds(ids: npt.ArrayLike, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return a seed for each sample, which depends on nothing but its number and ``seed``.

    A seed is the number that SplitMix64 gives (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", 2014), without its last bit.

    Args:
        ids: The numbers of samples, integers of shape (N,), as ``predict`` and ``collate`` get
            them.
        seed: The seed of the evaluation, from 0 up; each gives other seeds of samples.

    Returns:
        Integers from 0 to 2**63 - 1, of shape (N,). The generators of NumPy, torch and Python take
        them; ``jax.random.fold_in`` takes the numbers of samples themselves.

    Raises:
        UsageError: ``ids`` are not integers, or ``seed`` is not one or negative.
    """
    numbers = np.asarray(ids)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise UsageError(
            f"ids must be integers of shape (N,), not an array of {numbers.dtype} of shape "
            f"{numbers.shape}; give what predict or collate gets as ids"
        )
    start = mix(np.array([check_count("seed", seed, 0) % 2**64], np.uint64))
    found = mix(start + numbers.astype(np.uint64) * np.uint64(GAMMA)) >> np.uint64(1)
    return np.asarray(found, np.int64)


def takes_ids(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the ``forward`` of a model, has a parameter named ``ids``."""
    for found in (function, getattr(function, "forward", None)):
        try:
            with _PARSING:
                named = signature(found).parameters.get("ids")  # type: ignore[arg-type]
        except (TypeError, ValueError):  # that of some functions of C can't be known
            continue
        if named is not None and named.kind in (
            Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        ):  # fmt: skip
            return True
    return False


def seed_all(ids: npt.NDArray[np.int64], seed: int = 0) -> None:
    """Seed the global generators of this process by the first sample of a batch, see `seeds`."""
    found = int(seeds(ids[:1], seed)[0])
    random.seed(found)
    np.random.seed(found % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(found)


@contextmanager
def drawn(*, kept: bool = False) -> Iterator[list[str]]:
    """Yield a list that has the names of the global generators that have moved, at the end.

    Args:
        kept: Whether these are put back to where they were.
    """
    names: list[str] = []
    before = _states()
    try:
        yield names
    finally:
        names += [name for name, state in _states().items() if before.get(name, state) != state]
        for name in names if kept else ():
            _put_back(name, before[name])


def _put_back(name: str, state: Any) -> None:
    if name == "random":
        random.setstate(state)
    elif name == "numpy.random":
        np.random.set_state(pickle.loads(state))
    else:
        torch = sys.modules["torch"]
        parts = state if name == "torch.cuda" else [state]
        tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]
        if name == "torch.cuda":
            torch.cuda.set_rng_state_all(tensors)
        else:
            torch.set_rng_state(tensors[0])


def _states() -> dict[str, Any]:
    found: dict[str, Any] = {
        "random": random.getstate(),
        "numpy.random": pickle.dumps(np.random.get_state()),
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            found["torch.cuda"] = [state.numpy().tobytes() for state in states]
    return found
