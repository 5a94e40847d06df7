"""Evaluation loops that are right, some of them in unusual ways."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from disteval import Coverage, evaluate, get_dist_backend
from disteval.audit import Case
from disteval.metrics import Accuracy, Mean

from suites.audit.parts import (
    batches,
    batches_of_one,
    counted,
    divided,
    gathered,
    merged,
    padded,
    rights,
    strided,
    write_part,
)

Loop = Callable[[Case], Any]


def sums_of_integers(case: Case) -> Any:
    return {"accuracy": divided(gathered(counted(case, strided(case))))}


def rank_0_alone(case: Case) -> Any:
    if case.rank > 0:
        return None
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
    return {"accuracy": result.metrics["accuracy"]["top1"], "count": result.size}


def evaluate_of_disteval_on_a_stream(case: Case) -> Any:
    result = evaluate(
        lambda batch: case.predict(batch["x"]),
        case.stream(),
        {"accuracy": Accuracy()},
        batch_size=case.batch_size,
    )
    return {"accuracy": result.metrics["accuracy"]["top1"], "count": result.size}


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


def queue_of_work(case: Case) -> Any:
    """Ranks take the next batch from a common file, so that one may evaluate most of them."""
    queue = get_dist_backend().broadcast_object(_new_file() if case.rank == 0 else None, 0)
    own: list[int] = []
    while (begin := _take_one(queue) * case.batch_size) < len(case.dataset):
        own += range(len(case.dataset))[begin : begin + case.batch_size]
    pairs = gathered(counted(case, own))
    if case.rank == 0:
        queue.unlink()
    return {"accuracy": divided(pairs), "count": sum(seen for _, seen in pairs)}


def _new_file() -> Path:
    descriptor, name = tempfile.mkstemp()
    os.close(descriptor)
    return Path(name)


def _take_one(queue: Path) -> int:
    """Append a byte, and return how many there were."""
    with queue.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b".")
        file.flush()
        return file.tell() - 1


def dealt_by_rank_0(case: Case) -> Any:
    """Rank 0 alone reads the samples, and sends the others theirs."""
    samples = list(case.dataset) if case.rank == 0 else None
    own = get_dist_backend().broadcast_object(samples, 0)[case.rank :: case.world_size]
    return {"accuracy": divided(gathered((sum(rights(case, own)), len(own))))}


def padded_and_trimmed(case: Case) -> Any:
    """All ranks have as many samples, and the repeats at the end are cut off."""
    dealt = zip(*gathered([case.dataset[at]["id"] for at in padded(case)]), strict=True)
    return {"ids": [each for turn in dealt for each in turn][: len(case.dataset)], "ordered": True}


def padded_and_masked(case: Case) -> Any:
    """Every rank has as many batches of one shape, and a mask keeps what fills them out."""
    right = seen = 0
    rounds = -(-len(case.dataset) // (case.batch_size * case.world_size))
    for at in range(rounds):
        own = strided(case)[at * case.batch_size : (at + 1) * case.batch_size]
        x, labels = np.zeros((case.batch_size, 8), np.float32), np.zeros(case.batch_size)
        for row, i in enumerate(own):
            x[row], labels[row] = case.dataset[i]["x"], case.dataset[i]["label"]
        mask = np.arange(case.batch_size) < len(own)
        found = [(case.predict(x).argmax(axis=1) == labels) & mask, mask]
        together = np.sum(gathered(np.array(found)), axis=(0, 2))
        right, seen = right + together[0], seen + together[1]
    return {"accuracy": right / seen, "count": seen}


def gathered_in_reverse(case: Case) -> Any:
    """Scores come back by rank from the last one on, in an order that nothing promises."""
    own = [(s["id"], np.log1p(case.predict(s["x"][None]))[0]) for [s] in batches_of_one(case)]
    pairs = [pair for part in reversed(gathered(own)) for pair in reversed(part)]
    return {"ids": [i for i, _ in pairs], "outputs": np.array([out for _, out in pairs])}


def float32_sums(case: Case) -> Any:
    values = [s["value"] for b in batches(case, strided(case)) for s in b]
    pairs = gathered((np.float32(sum(values)), np.float32(len(values))))
    return {"mean": np.float32(sum(p[0] for p in pairs)) / np.float32(sum(p[1] for p in pairs))}


def _merge_by_id(case: Case, paths: list[Path]) -> Any:
    rows = [line.split() for path in paths for line in path.read_text().splitlines()]
    found = {int(i): int(right) for i, right in rows}
    if len(found) != len(case.dataset):
        raise ValueError(f"the parts have {len(found)} of {len(case.dataset)} samples")
    return {"accuracy": sum(found.values()) / len(found), "ids": [*found]}


@merged(_merge_by_id)
def jobs_that_write_parts(case: Case) -> Any:
    return write_part(case, f"{case.rank}-{len(list(case.folder.iterdir()))}")


def logs_its_loss_on_rank_0(case: Case) -> Any:
    """Logs the loss so far, as trainers do; the last one counts."""
    own = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    for pairs in (gathered((sum(own[:1]), len(own[:1]))), gathered((sum(own), len(own)))):
        if case.rank == 0:
            case.logged("loss", divided(pairs))
    return {"count": sum(seen for _, seen in pairs)}


RIGHT: list[Loop] = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]
"""Every loop of this module."""
