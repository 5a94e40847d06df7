"""Evaluation loops with accelerate, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

import torch
from disteval.audit import Case
from disteval.metrics import Accuracy
from torch.utils.data import DataLoader

from suites.audit.sound import sound


def make_accelerator(**settings: Any) -> Any:
    """Return an accelerator on the CPU, with settings of its loaders."""
    from accelerate import Accelerator

    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if not settings:
        return Accelerator(cpu=True)
    from accelerate import DataLoaderConfiguration  # older releases lack it

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))


def loader_of(case: Case, samples: Any) -> Any:
    """Return a loader over samples of a case."""
    return DataLoader(samples, batch_size=case.batch_size, num_workers=case.num_workers)


def gathered(accelerator: Any, case: Case, loader: Any) -> dict[str, float]:
    """Return what ``gather_for_metrics`` of predictions over a prepared loader gives."""
    right = seen = 0
    for batch in accelerator.prepare(loader):
        predicted = case.predict(batch["x"]).argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["label"]))
        right += int((predicted == labels).sum())
        seen += len(labels)
    return {"accuracy": right / seen, "count": seen}


def reduced(accelerator: Any, case: Case) -> dict[str, float]:
    """Return what sums over a prepared loader and ``reduce`` give."""
    right = seen = 0
    for batch in accelerator.prepare(loader_of(case, case.dataset)):
        right += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    right, seen = accelerator.reduce(torch.tensor([right, seen])).tolist()
    return {"accuracy": right / seen, "count": seen}


@sound("accelerate")
def map_style(case: Case) -> Any:
    """``prepare`` of a loader over a map-style data set, and ``gather_for_metrics``."""
    return gathered(make_accelerator(), case, loader_of(case, case.dataset))


@sound("accelerate")
def gathered_ids(case: Case) -> Any:
    """``gather_for_metrics`` of the numbers of the samples."""
    accelerator = make_accelerator()
    ids: list[int] = []
    for batch in accelerator.prepare(loader_of(case, case.dataset)):
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
    return {"ids": ids, "ordered": True}


@sound("accelerate")
def split_batches(case: Case) -> Any:
    """The same with ``split_batches=True``."""
    size = case.batch_size * case.world_size
    return gathered(
        make_accelerator(split_batches=True), case, DataLoader(case.dataset, batch_size=size)
    )


@sound("accelerate")
def gathered_objects(case: Case) -> Any:
    """``gather_for_metrics`` of lists with one object for each sample."""
    accelerator = make_accelerator()
    ids: list[int] = []
    for batch in accelerator.prepare(loader_of(case, case.dataset)):
        ids += accelerator.gather_for_metrics(batch["id"].tolist())
    return {"ids": ids, "ordered": True}


@sound("accelerate")
def split_between_processes(case: Case) -> Any:
    """``split_between_processes`` of the numbers of the samples, and ``gather_object``."""
    from accelerate.utils import gather_object

    accelerator = make_accelerator()
    with accelerator.split_between_processes(list(range(len(case.dataset)))) as own:
        found = [case.dataset[i]["id"] for i in own]
    return {"ids": gather_object(found)}


@sound("accelerate", "nonempty")
def split_with_enough_samples(case: Case) -> Any:
    """The same where every rank has a sample."""
    return split_between_processes(case)


def resumed(accelerator: Any, case: Case) -> Any:
    """Return the ids of one batch, and of the others from ``skip_first_batches``."""
    loader = accelerator.prepare(loader_of(case, case.dataset))
    ids: list[int] = []
    for batch in loader:
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
        break
    for batch in accelerator.skip_first_batches(loader, 1):
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
    return {"ids": ids}


@sound("accelerate")
def reduced_sums_without_even_batches(case: Case) -> Any:
    """The same with ``even_batches=False``, so that no sample is repeated."""
    return reduced(make_accelerator(even_batches=False), case)


@sound("accelerate")
def stream_counted_by_id(case: Case) -> Any:
    """A stream that every rank reads, and disteval's metric, which counts each id once."""
    accelerator = make_accelerator(dispatch_batches=False)
    accuracy = Accuracy(dist_backend="torch_cpu")
    for batch in accelerator.prepare(DataLoader(case.stream(), batch_size=case.batch_size)):
        accuracy.add(case.predict(batch["x"]), batch["label"], ids=batch["id"])
    return {"accuracy": accuracy.compute()["top1"]}


@sound("accelerate", "nonempty")
def stream_dispatched_with_enough_samples(case: Case) -> Any:
    """A stream that rank 0 reads for all ranks (``dispatch_batches=True``, the default)."""
    return gathered(make_accelerator(), case, DataLoader(case.stream(), batch_size=case.batch_size))
