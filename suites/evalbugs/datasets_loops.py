"""Evaluation loops over shares of ``datasets``, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

from disteval.audit import Case
from torch.utils.data import DataLoader

from suites.evalbugs.parts import all_ids
from suites.evalbugs.table import older, sound, sound_where, wrong


@wrong("datasets", "crashes", "N=1,B=1,W=2")
def map_style(case: Case) -> Any:
    """``split_dataset_by_node`` of a data set with a length, with fewer samples than ranks."""
    from datasets.distributed import split_dataset_by_node

    own = split_dataset_by_node(case.hf_dataset(), case.rank, case.world_size)
    return {"ids": all_ids(case, own["id"])}


map_style_with_enough_samples = sound_where("nonempty", "datasets", map_style)


@sound("datasets")
def stream(case: Case) -> Any:
    """``split_dataset_by_node`` of a stream with two shards, through a loader with workers."""
    return _of_stream(case, lambda stream: stream)


@sound("datasets")
def stream_shuffled(case: Case) -> Any:
    """The same, shuffled with one seed on all ranks."""
    return _of_stream(case, lambda stream: stream.shuffle(seed=case.seed, buffer_size=4))


@older("5.0.1", "counted twice", "N=2,B=1,W=2")
@sound("datasets")
def stream_skipped(case: Case) -> Any:
    """A share of a stream with two shards, and ``skip`` of no samples, as at the first start."""
    return _of_stream(case, lambda stream: stream, lambda own: own.skip(0))


@older("4.5.0", "counted twice", "N=1,B=1,W=2")
@sound("datasets")
def streams_interleaved(case: Case) -> Any:
    """A share of a stream with two shards, given to ``interleave_datasets``."""
    from datasets import interleave_datasets

    return _of_stream(case, lambda stream: stream, lambda own: interleave_datasets([own]))


def _of_stream(case: Case, change: Any, change_own: Any = lambda own: own) -> Any:
    from datasets.distributed import split_dataset_by_node

    logging.getLogger("datasets").setLevel(logging.ERROR)
    shards = min(2, len(case.dataset))
    stream = change(case.hf_dataset().to_iterable_dataset(num_shards=shards))
    own = change_own(split_dataset_by_node(stream, case.rank, case.world_size))
    own = own.with_format("torch")
    loader = DataLoader(own, batch_size=case.batch_size, num_workers=case.num_workers)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}


@wrong("datasets", "dropped", "N=3,B=1,W=2")
def first_of_uneven_shards(case: Case) -> Any:
    """A share of ``take`` of as many samples as there are, of shards of unequal length."""
    from datasets import IterableDataset
    from datasets.distributed import split_dataset_by_node

    logging.getLogger("datasets").setLevel(logging.ERROR)
    samples = case.hf_dataset().to_list()

    def read(files: list[list[dict[str, Any]]]) -> Any:
        return (sample for file in files for sample in file)

    files = [samples[:1], samples[1:]]
    stream = IterableDataset.from_generator(read, gen_kwargs={"files": files}).take(len(samples))
    own = split_dataset_by_node(stream, case.rank, case.world_size).with_format("torch")
    loader = DataLoader(own, batch_size=case.batch_size)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}
