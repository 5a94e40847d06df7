"""Evaluation loops with JAX over several processes, wrong ones and right ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from disteval.audit import Case
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from suites.audit.parts import strided

WRONG = {
    "counts_what_fills_a_batch": ("counted twice", "N=1,B=1,W=2"),
    "takes_the_mean_over_processes": ("weighted wrongly", "N=1,B=1,W=2"),
    "gathers_process_by_process": ("outputs of other samples", "N=2,B=2,W=2"),
    "reshapes_to_equal_shares": ("dropped", "N=1,B=1,W=2"),
}
"""The kind and the case of each wrong loop's first finding."""

RIGHT = ("sums_over_a_mesh_with_a_mask", "gathers_in_turn")

_ROWS = 16  # of every global batch on each process, so that nothing is compiled again


def _rounds(case: Case) -> int:
    """Return the number of batches that the process with the most samples has."""
    return -(-len(case.dataset) // (case.world_size * case.batch_size))


def _filled(case: Case, number: int) -> tuple[Any, Any, Any]:
    """Return a batch that the last sample fills up, as pmap needs it, and which rows count."""
    own = strided(case)[number * case.batch_size :][: case.batch_size]
    rows = (own or [0]) + (own or [0])[-1:] * case.batch_size
    samples = [case.dataset[i] for i in rows[: case.batch_size]]
    x, labels = (np.stack([s[name] for s in samples]) for name in ("x", "label"))
    return x, labels, np.arange(case.batch_size) < len(own)


def _right(case: Case, x: Any, labels: Any) -> Any:
    return np.asarray(case.predict(jnp.asarray(x)).argmax(axis=1)) == labels


def _summed(*values: float) -> Any:
    return multihost_utils.process_allgather(np.array(values)).reshape(-1, len(values)).sum(axis=0)


def counts_what_fills_a_batch(case: Case) -> Any:
    """Fill batches up with the last sample, and count that again; wrong."""
    seen = sum(len(_filled(case, number)[1]) for number in range(_rounds(case)))
    return {"count": _summed(seen)[0]}


def takes_the_mean_over_processes(case: Case) -> Any:
    """Average the processes' accuracies, as pmean does it; wrong."""
    own = [case.dataset[i] for i in strided(case)]
    right = [_right(case, s["x"][None], s["label"])[0] for s in own]
    means = multihost_utils.process_allgather(np.array([np.mean(right) if right else 0.0]))
    return {"accuracy": means.mean()}


def gathers_process_by_process(case: Case) -> Any:
    """Gather the predictions of strided shares, and cut the end off; wrong."""
    return {"outputs": _predictions(case).reshape(-1)[: len(case.dataset)], "ordered": True}


def reshapes_to_equal_shares(case: Case) -> Any:
    """Cut the samples to a shape that the processes divide; wrong."""
    share = len(case.dataset) // case.world_size
    order = np.arange(share * case.world_size).reshape(case.world_size, share)
    ids = [case.dataset[int(i)]["id"] for i in order[case.rank]]
    return {"count": _summed(len(ids))[0]}


def gathers_in_turn(case: Case) -> Any:
    """Gather the predictions of strided shares, and put them in turn; right."""
    return {"outputs": _predictions(case).T.reshape(-1)[: len(case.dataset)], "ordered": True}


def _predictions(case: Case) -> Any:
    """Return the predictions of each process, in one row with what fills its batches up."""
    found = [
        case.predict(jnp.asarray(_filled(case, n)[0])).argmax(axis=1) for n in range(_rounds(case))
    ]
    own = np.concatenate(found)
    return multihost_utils.process_allgather(own).reshape(case.world_size, -1)


def sums_over_a_mesh_with_a_mask(case: Case) -> Any:
    """Sum over a mesh of all devices, where rows of weight 0 fill the batches up; right."""
    found = np.zeros(2)
    for number in range(_rounds(case)):
        x, labels, mask = _filled(case, number)
        sums = np.array([np.sum(_right(case, x, labels) & mask), mask.sum()], np.float32)
        rows = np.zeros((_ROWS, 2), np.float32)
        rows[0] = sums
        found += _sum_over_mesh(_global(rows))
    return {"accuracy": found[0] / found[1], "count": found[1]}


@cache
def _mesh() -> Any:
    return Mesh(np.array(jax.devices()), ("processes",))


def _global(rows: Any) -> Any:
    sharding = NamedSharding(_mesh(), PartitionSpec("processes"))
    return jax.make_array_from_process_local_data(sharding, rows)


@cache
def _compiled() -> Any:
    everywhere = NamedSharding(_mesh(), PartitionSpec())
    return jax.jit(lambda rows: rows.sum(axis=0), out_shardings=everywhere)


def _sum_over_mesh(rows: Any) -> Any:
    return np.asarray(_compiled()(rows))
