"""The state of the random number generators that a training uses, in plain containers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

RngState = dict[str, Any]
"""Tensors, lists and numbers, which ``torch.load(weights_only=True)`` reads."""


def capture() -> RngState:
    """Return the state of Python's, NumPy's and torch's global generators, on this rank."""
    version, internal, gauss = random.getstate()
    _, keys, *rest = np.random.get_state()
    state: RngState = {
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Set the generators to the result of `capture`; a GPU's only if there was and is a GPU."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(
        ("MT19937", keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def derive(seed: int, iteration: int, rank: int) -> None:
    """Seed the generators from a seed, an iteration and a rank."""
    words = np.random.SeedSequence([abs(seed), iteration, rank]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
