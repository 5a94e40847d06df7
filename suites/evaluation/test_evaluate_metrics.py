"""Outputs and batches of each form reach the metrics, at little cost for a sample."""

from collections import UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import evaluate
from disteval.metrics import Mean


class Pair(NamedTuple):
    """Outputs of a class of their own."""

    scores: Any
    more: dict[str, Any]


class Output(UserDict[str, Any]):
    """Outputs as those of transformers: a dict that is no dict, with attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self.data:
            return self.data[name]
        raise AttributeError(name)


OUTPUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda x: x.tolist(), lambda out: np.array(out)),
    "tuple": (lambda x: (x, [x.tolist() for _ in x]), lambda out: out[0]),
    "named tuple": (lambda x: Pair(x, {"y": [*x]}), lambda out: np.array(out.more["y"])),
    "dict of a class": (lambda x: Output(scores=x), lambda out: out.scores),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_keep_their_form_where_a_batch_was_filled_up(kind: str) -> None:
    make, read = OUTPUTS[kind]
    seen = []

    def update(outputs: Any, batch: Any) -> Any:
        seen.append(type(outputs))
        return (read(outputs),)

    data = np.arange(40.0)
    found = evaluate(make, data, {"mean": Mean()}, "non_dist", 7, update=update)
    assert found.metrics["mean"]["mean"] == data.mean()
    assert len(set(seen)) == 1
