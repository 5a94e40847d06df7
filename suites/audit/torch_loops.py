"""Evaluation loops in plain torch, wrong ones and right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case
from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

from suites.audit.parts import Loop, strided

WRONG: dict[str, tuple[str, str]] = {}
"""The kind and the case of each wrong loop's first finding."""

RIGHT = ("distributed_sampler_trimmed_in_turn", "stream_sharded_by_rank_and_worker")


def wrong(kind: str, case: str, assumes: tuple[str, ...] = ()) -> Callable[[Loop], Loop]:
    """Register a loop that the audit must convict of a kind, in that case."""

    def register(loop: Any) -> Loop:
        WRONG[loop.__name__], loop.assumes = (kind, case), assumes
        return loop

    return register


def summed(*values: float) -> list[float]:
    """Return the sums of all ranks' values."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    return list(tensor.tolist())


def sampler_of(case: Case) -> Any:
    """Return the sampler that most people use, which pads."""
    return DistributedSampler(
        case.dataset,  # type: ignore[arg-type]
        case.world_size,
        case.rank,
        shuffle=case.shuffle,
        seed=case.seed,
    )


def loader_of(case: Case, samples: Any, **settings: Any) -> Any:
    """Return torch's loader."""
    return DataLoader(samples, batch_size=case.batch_size, num_workers=case.num_workers, **settings)


def rights(case: Case, batches: Iterable[Any]) -> tuple[int, int]:
    """Return how many samples of these batches are right, and how many there are."""
    found = seen = 0
    for batch in batches:
        found += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["id"])
    return found, seen


@wrong("counted twice", "N=3,B=1,W=2")
def distributed_sampler_and_sums(case: Case) -> Any:
    found, seen = summed(*rights(case, loader_of(case, case.dataset, sampler=sampler_of(case))))
    return {"accuracy": found / seen}


@wrong("crashes", "N=1,B=1,W=2")
def all_reduce_in_every_batch(case: Case) -> Any:
    total = [0.0, 0.0]
    for batch in loader_of(case, case.dataset, sampler=strided(case)):
        found = summed(*rights(case, [batch]))
        total = [total[0] + found[0], total[1] + found[1]]
    return {"accuracy": total[0] / total[1]}


@wrong("hangs", "N=3,B=1,W=2", assumes=("nonempty",))
def all_reduce_in_every_batch_of_ranks_with_samples(case: Case) -> Any:
    total = [0.0, 1e-9]
    for batch in loader_of(case, case.dataset, sampler=strided(case)):
        found = summed(*rights(case, [batch]))
        total = [total[0] + found[0], total[1] + found[1]]
    return {"accuracy": total[0] / total[1]}


@wrong("counted twice", "N=1,B=1,W=2")
def every_rank_loads_the_stream(case: Case) -> Any:
    _, seen = summed(*rights(case, loader_of(case, case.stream())))
    return {"count": seen}


@wrong("counted twice", "N=5,B=2,W=2,workers=2")
def every_worker_loads_the_stream(case: Case) -> Any:
    own = _EveryNth(case.stream(), case.rank, case.world_size)
    _, seen = summed(*rights(case, loader_of(case, own)))
    return {"count": seen}


class _EveryNth(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, stream: Any, rank: int, world_size: int) -> None:
        self.stream, self.rank, self.world_size = stream, rank, world_size

    def __iter__(self) -> Any:
        return (s for i, s in enumerate(self.stream) if i % self.world_size == self.rank)


_seen = [0.0, 0.0]


@wrong("differs from call to call", "N=1,B=1,W=2")
def never_resets(case: Case) -> Any:
    for at, value in enumerate(rights(case, loader_of(case, case.dataset, sampler=strided(case)))):
        _seen[at] += value
    return {"count": summed(*_seen)[1]}


@wrong("weighted wrongly", "N=3,B=1,W=2", assumes=("nonempty",))
def all_reduces_a_mean(case: Case) -> Any:
    found, seen = rights(case, loader_of(case, case.dataset, sampler=strided(case)))
    tensor = torch.tensor(found / max(seen, 1))
    dist.all_reduce(tensor)
    return {"accuracy": tensor / case.world_size}


@wrong("weighted wrongly", "N=2,B=1,W=2,tokens")
def means_of_token_means(case: Case) -> Any:
    total, number = 0.0, 0
    for i in strided(case):
        total += float(case.token_losses(torch.as_tensor(case.dataset[i]["tokens"])).mean())
        number += 1
    total, number = summed(total, number)
    return {"loss": total / number}


def distributed_sampler_trimmed_in_turn(case: Case) -> Any:
    own = [int(i) for b in loader_of(case, case.dataset, sampler=sampler_of(case)) for i in b["id"]]
    parts: list[Any] = [None] * case.world_size
    dist.all_gather_object(parts, own)
    return {"ids": [i for turn in zip(*parts, strict=True) for i in turn][: len(case.dataset)]}


def stream_sharded_by_rank_and_worker(case: Case) -> Any:
    _, seen = summed(*rights(case, loader_of(case, _EveryNthOfAll(case))))
    return {"count": seen}


class _EveryNthOfAll(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, case: Case) -> None:
        self.stream, self.rank, self.world_size = case.stream(), case.rank, case.world_size

    def __iter__(self) -> Any:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        turn, turns = self.rank * count + number, self.world_size * count
        return (s for i, s in enumerate(self.stream) if i % turns == turn)
