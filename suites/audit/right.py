"""Evaluation loops that are right, some of them in unusual ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from disteval import Coverage, evaluate, get_dist_backend
from disteval.audit import Case
from disteval.metrics import Accuracy, Mean

from suites.audit.wrong import batches, counted, divided, gathered, padded, rights, strided

Loop = Callable[[Case], Any]


def sums_of_integers(case: Case) -> Any:
    return {"accuracy": divided(gathered(counted(case, strided(case))))}


def rank_0_alone(case: Case) -> Any:
    if case.rank > 0:
        return None
    return {"accuracy": divided([counted(case, range(len(case.dataset)))])}


def every_rank_everything(case: Case) -> Any:
    return {"accuracy": divided([counted(case, range(len(case.dataset)))])}


def duplicates_dropped_by_id(case: Case) -> Any:
    found = {
        s["id"]: right
        for batch in batches(case, padded(case))
        for s, right in zip(batch, rights(case, batch), strict=True)
    }
    together = {i: right for part in gathered(found) for i, right in part.items()}
    return {"accuracy": sum(together.values()) / len(together), "ids": sorted(together)}


def contiguous_shards(case: Case) -> Any:
    cuts = [len(case.dataset) * r // case.world_size for r in range(case.world_size + 1)]
    own = range(cuts[case.rank], cuts[case.rank + 1])
    outputs = [int(case.predict(case.dataset[i]["x"][None]).argmax()) for i in own]
    return {"outputs": [out for part in gathered(outputs) for out in part], "ordered": True}


def last_rank_does_most(case: Case) -> Any:
    last = case.world_size - 1
    own = range(last, len(case.dataset)) if case.rank == last else range(case.rank, case.rank + 1)
    return {"accuracy": divided(gathered(counted(case, [i for i in own if i < len(case.dataset)])))}


def uneven_lists(case: Case) -> Any:
    values = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    together = [value for part in gathered(values) for value in part]
    return {"mean": float(np.mean(together)), "sum": sum(together), "count": len(together)}


def stream_by_position(case: Case) -> Any:
    own = [s for i, s in enumerate(case.stream()) if i % case.world_size == case.rank]
    return {"accuracy": divided(gathered((sum(rights(case, own)), len(own))))}


def shuffled_by_a_common_seed(case: Case) -> Any:
    order = np.random.default_rng(case.seed).permutation(len(case.dataset))
    own = order[case.rank :: case.world_size].tolist()
    ids = [s["id"] for b in batches(case, own) for s in b]
    return {"ids": [i for part in gathered(ids) for i in part]}


def maximum_over_ranks(case: Case) -> Any:
    values = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    return {"largest": max(gathered(max(values, default=-1.0)))}


def broadcast_from_the_last_rank(case: Case) -> Any:
    pairs = gathered(counted(case, strided(case)))
    result = divided(pairs) if case.rank == case.world_size - 1 else None
    return {"accuracy": get_dist_backend().broadcast_object(result, src=case.world_size - 1)}


def metrics_of_disteval(case: Case) -> Any:
    mean = Mean()
    for batch in batches(case, padded(case)):
        mean.add(np.array([s["value"] for s in batch]), ids=np.array([s["id"] for s in batch]))
    return mean.compute(size=len(case.dataset))


metrics_of_disteval.assumes = ("numbered",)  # type: ignore[attr-defined]


def evaluate_of_disteval(case: Case) -> Any:
    result = evaluate(
        lambda batch: case.predict(batch["x"]),
        case.dataset,
        {"accuracy": Accuracy()},
        batch_size=case.batch_size,
    )
    return {"accuracy": result.metrics["accuracy"]["top1"], "count": result.evaluated}


def evaluate_of_disteval_on_a_stream(case: Case) -> Any:
    result = evaluate(
        lambda batch: case.predict(batch["x"]),
        case.stream(),
        {"accuracy": Accuracy()},
        batch_size=case.batch_size,
    )
    return {"accuracy": result.metrics["accuracy"]["top1"], "count": result.evaluated}


def coverage_of_disteval(case: Case) -> Any:
    coverage = Coverage(len(case.dataset), get_dist_backend())
    for batch in batches(case, strided(case)):
        coverage.count([s["id"] for s in batch])
    coverage.certify()
    return {"accuracy": divided(gathered(counted(case, strided(case))))}


coverage_of_disteval.assumes = ("numbered",)  # type: ignore[attr-defined]


def metrics_of_disteval_with_any_ids(case: Case) -> Any:
    mean = Mean()
    for batch in batches(case, padded(case)):
        mean.add(np.array([s["value"] for s in batch]), ids=np.array([s["id"] for s in batch]))
    return mean.compute()


def put_in_order_by_position(case: Case) -> Any:
    own = [(i, case.dataset[i]) for i in padded(case)]
    outputs = {i: int(case.predict(s["x"][None]).argmax()) for i, s in own}
    together = {i: out for part in gathered(outputs) for i, out in part.items()}
    ids = {i: s["id"] for i, s in own}
    known = {i: each for part in gathered(ids) for i, each in part.items()}
    order = sorted(together)
    return {
        "outputs": [together[i] for i in order],
        "ids": [known[i] for i in order],
        "ordered": True,
    }


def float32_sums(case: Case) -> Any:
    values = [s["value"] for b in batches(case, strided(case)) for s in b]
    pairs = gathered((np.float32(sum(values)), np.float32(len(values))))
    return {"mean": np.float32(sum(p[0] for p in pairs)) / np.float32(sum(p[1] for p in pairs))}


RIGHT: list[Loop] = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name != "Loop"
]
"""Every loop of this module."""
