"""Evaluation loops over libraries that stream samples from files, as their users write them.

Each rank writes the files into a temporary folder of its own, where it needs no other rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from disteval.audit import Case
from torch.utils.data import default_collate

from suites.audit.sound import sound
from suites.audit.sound.parts import all_ids

_SHARDS = 3


@sound("webdataset")
def shards(case: Case) -> Any:
    """``WebDataset`` with ``split_by_node``, where ranks and workers may have no shard."""
    return ids_of_shards(case, empty_check=False)


def ids_of_shards(case: Case, **settings: Any) -> Any:
    """Return the ids that come of three shards of ``WebDataset``."""
    import webdataset as wds

    ids = [int(sample["id"]) for sample in case.samples()]
    with TemporaryDirectory() as folder:
        urls = [f"{folder}/{shard}.tar" for shard in range(min(_SHARDS, len(ids)))]
        for shard, url in enumerate(urls):
            with wds.TarWriter(url) as writer:
                for i in ids[shard::_SHARDS]:
                    writer.write({"__key__": str(i), "id": i})
        data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node, **settings)
        data = data.decode().to_tuple("id").batched(case.batch_size)
        loader = wds.WebLoader(data, batch_size=None, num_workers=case.num_workers)
        return {"ids": all_ids(case, [i for (batch,) in loader for i in batch])}


@sound("litdata")
def optimized(case: Case) -> Any:
    """``StreamingDataset`` with ``drop_last=False``, as for validation."""
    with written(case, [case.samples()]) as (data,):
        return ids_of_data(case, data(drop_last=False))


@contextmanager
def written(case: Case, parts: list[list[dict[str, Any]]]) -> Iterator[list[Callable[..., Any]]]:
    """Write data sets, and yield for each a function that reads it with more settings."""
    from functools import partial

    from litdata import StreamingDataset, complete_dataset
    from litdata.streaming import Cache

    logging.getLogger("litdata").setLevel(logging.ERROR)
    with TemporaryDirectory() as folder:
        found = []
        for number, samples in enumerate(filter(None, parts)):
            cache = Cache(f"{folder}/{number}", chunk_size=2)
            for index, sample in enumerate(samples):
                cache[index] = {"id": int(sample["id"])}
            cache.done()
            complete_dataset(f"{folder}/{number}")
            shuffle = {"shuffle": case.shuffle, "seed": case.seed}
            found.append(partial(StreamingDataset, f"{folder}/{number}", **shuffle))
        yield found


def ids_of_data(case: Case, data: Any) -> Any:
    """Return the ids that a loader of litdata reads."""
    from litdata import StreamingDataLoader

    loader = StreamingDataLoader(data, batch_size=case.batch_size, num_workers=case.num_workers)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}


@sound("torchdata")
def stateful_loader(case: Case) -> Any:
    """``StatefulDataLoader`` over a share, stopped after a batch and resumed by another."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        return StatefulDataLoader(
            case.dataset, case.batch_size, sampler=own_numbers(case), num_workers=case.num_workers
        )

    return {"ids": all_ids(case, _resumed(make))}


@sound("torchdata")
def nodes(case: Case) -> Any:
    """A pipeline of ``torchdata.nodes`` over a share, stopped and resumed, too."""
    import torchdata.nodes as tn

    def read(indices: list[int]) -> Any:
        return default_collate([case.dataset[index] for index in indices])

    def make() -> Any:
        batches = tn.Batcher(tn.SamplerWrapper(own_numbers(case)), case.batch_size, drop_last=False)
        workers = {"num_workers": max(1, case.num_workers), "method": "thread"}
        node = tn.Prefetcher(tn.ParallelMapper(batches, read, **workers), prefetch_factor=2)
        return tn.Loader(node, restart_on_stop_iteration=False)

    return {"ids": all_ids(case, _resumed(make))}


def own_numbers(case: Case) -> Any:
    """Return the numbers of every W-th sample."""
    return list(range(case.rank, len(case.dataset), case.world_size))


def _resumed(make: Callable[[], Any]) -> list[int]:
    """Return the ids of a loader's first batch, and those that a new one resumes with."""
    ids: list[int] = []
    loader, state = make(), None
    for batch in loader:
        ids += batch["id"].tolist()
        state = loader.state_dict()
        break
    if state is not None:
        loader = make()
        loader.load_state_dict(state)
        ids += [i for batch in loader for i in batch["id"].tolist()]
    return ids
