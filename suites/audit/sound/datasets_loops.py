"""Evaluation loops over shares of ``datasets``, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

from disteval.audit import Case
from torch.utils.data import DataLoader

from suites.audit.sound import sound
from suites.audit.sound.parts import all_ids


@sound("datasets", "nonempty")
def map_style_with_enough_samples(case: Case) -> Any:
    """``split_dataset_by_node`` of a data set with a length, where every rank has a sample."""
    from datasets.distributed import split_dataset_by_node

    own = split_dataset_by_node(case.hf_dataset(), case.rank, case.world_size)
    return {"ids": all_ids(case, own["id"])}


@sound("datasets")
def stream(case: Case) -> Any:
    """``split_dataset_by_node`` of a stream with two shards, through a loader with workers."""
    return ids_of_stream(case, lambda stream: stream)


@sound("datasets")
def stream_shuffled(case: Case) -> Any:
    """The same, shuffled with one seed on all ranks."""
    return ids_of_stream(case, lambda stream: stream.shuffle(seed=case.seed, buffer_size=4))


@sound("datasets")
def stream_skipped(case: Case) -> Any:
    """A share of a stream with two shards, and ``skip`` of no samples, as at the first start."""
    return ids_of_stream(case, lambda stream: stream, lambda own: own.skip(0))


@sound("datasets")
def streams_interleaved(case: Case) -> Any:
    """A share of a stream with two shards, given to ``interleave_datasets``."""
    from datasets import interleave_datasets

    return ids_of_stream(case, lambda stream: stream, lambda own: interleave_datasets([own]))


def ids_of_stream(case: Case, change: Any, change_own: Any = lambda own: own) -> Any:
    """Return the ids of a share of a stream with two shards, which both are changed."""
    from datasets.distributed import split_dataset_by_node

    logging.getLogger("datasets").setLevel(logging.ERROR)
    shards = min(2, len(case.dataset))
    stream = change(case.hf_dataset().to_iterable_dataset(num_shards=shards))
    own = change_own(split_dataset_by_node(stream, case.rank, case.world_size))
    own = own.with_format("torch")
    loader = DataLoader(own, batch_size=case.batch_size, num_workers=case.num_workers)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}
