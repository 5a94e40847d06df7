"""Loops over ten samples with the samplers that people have; rank 0 prints what Coverage says.

Run by `test_samplers`. Ranks are forked off a process that has imported the libraries, and find the
variables that torchrun sets.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from disteval import Coverage, CoverageError
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, StackDataset

SIZE = 10
NUMBERED = StackDataset(range(SIZE), torch.zeros(SIZE))


class Numbers(IterableDataset[int]):
    """A stream of the samples' numbers."""

    def __iter__(self) -> Any:
        return iter(range(SIZE))


class Model(LightningModule):
    """A model whose steps count their samples."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []

    def test_step(self, batch: Any) -> None:
        self.batches.append(batch[0])

    validation_step = predict_step = test_step


def say(name: str, batches: Iterable[Any], size: int | None = SIZE) -> None:
    """Count the ids of batches, and print what each rank counted and what certify says."""
    mine: list[int] = []
    coverage = Coverage(size, "torch_cpu")
    for ids in batches:
        coverage.count(ids)
        mine += torch.as_tensor(ids).tolist()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    try:
        allowed = coverage.certify("allowed").repeated.tolist()
    except CoverageError as error:
        allowed = str(error)
    try:
        strict = coverage.certify().size
    except CoverageError:
        strict = "error"
    if dist.get_rank() == 0:
        print(json.dumps([name, everyone, strict, allowed]), flush=True)


def torch_samplers() -> None:
    for name, settings in (
        ("DistributedSampler", {"shuffle": False}),
        ("shuffle", {"shuffle": True}),
        ("drop_last", {"shuffle": False, "drop_last": True}),
    ):
        sampler = DistributedSampler(NUMBERED, **settings)
        loader = DataLoader(NUMBERED, batch_size=2, sampler=sampler)
        say(name, (ids for ids, _ in loader))


def accelerate_samplers() -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(NUMBERED, batch_size=2))
    say("prepare", (ids for ids, _ in loader))
    gathered = [accelerator.gather_for_metrics(ids) for ids, _ in loader]
    say("gather_for_metrics", gathered if accelerator.is_main_process else [])
    stream = accelerator.prepare(DataLoader(Numbers(), batch_size=2))
    gathered = [accelerator.gather_for_metrics(ids) for ids in stream]
    say("gather_for_metrics of a stream", gathered if accelerator.is_main_process else [])

    settings = DataLoaderConfiguration(even_batches=False, dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    loader = accelerator.prepare(DataLoader(NUMBERED, batch_size=2))
    say("even_batches=False", (ids for ids, _ in loader))
    stream = accelerator.prepare(DataLoader(Numbers(), batch_size=2))
    gathered = [accelerator.gather_for_metrics(ids) for ids in stream]
    say("dispatch_batches=False", gathered if accelerator.is_main_process else [])


def lightning_samplers() -> None:
    def trainer(**settings: Any) -> Any:
        silent = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
        settings |= dict.fromkeys(silent, False)
        devices = dist.get_world_size()
        return Trainer(accelerator="cpu", devices=devices, strategy="ddp", **settings)

    for name, run in (
        ("test", trainer().test),
        ("validate", trainer().validate),
        ("predict", trainer().predict),
        ("use_distributed_sampler=False", trainer(use_distributed_sampler=False).test),
    ):
        model = Model()
        run(model, DataLoader(NUMBERED, batch_size=2))
        say(name, model.batches)


def datasets_splits() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = Dataset.from_dict({"id": list(range(SIZE))})
    say("Dataset", (b["id"] for b in split_dataset_by_node(rows, rank, world).iter(2)))
    for shards in (2 * world, world + 1):
        mine = split_dataset_by_node(rows.to_iterable_dataset(num_shards=shards), rank, world)
        say(f"IterableDataset of {shards} shards", (b["id"] for b in mine.iter(2)), None)


def on_rank(rank: int, world: int, store: str) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in own.items()})
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    torch_samplers()
    accelerate_samplers()
    lightning_samplers()
    datasets_splits()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(on_rank, (3, sys.argv[1]), 3, start_method="fork")
