"""Evaluation loops with accelerate, as its users write them."""

from __future__ import annotations

import logging
from typing import Any

import torch
from disteval.audit import Case
from disteval.metrics import Accuracy
from torch.utils.data import DataLoader

from suites.evalbugs.table import older, sound, sound_where, wrong


def _accelerator(**settings: Any) -> Any:
    from accelerate import Accelerator

    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if not settings:
        return Accelerator(cpu=True)
    from accelerate import DataLoaderConfiguration  # older releases lack it

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))


def _loader(case: Case, samples: Any) -> Any:
    return DataLoader(samples, batch_size=case.batch_size, num_workers=case.num_workers)


def _gathered(accelerator: Any, case: Case, loader: Any) -> dict[str, float]:
    right = seen = 0
    for batch in accelerator.prepare(loader):
        predicted = case.predict(batch["x"]).argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["label"]))
        right += int((predicted == labels).sum())
        seen += len(labels)
    return {"accuracy": right / seen, "count": seen}


def _reduced(accelerator: Any, case: Case) -> dict[str, float]:
    right = seen = 0
    for batch in accelerator.prepare(_loader(case, case.dataset)):
        right += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    right, seen = accelerator.reduce(torch.tensor([right, seen])).tolist()
    return {"accuracy": right / seen, "count": seen}


@sound("accelerate")
def map_style(case: Case) -> Any:
    """``prepare`` of a loader over a map-style data set, and ``gather_for_metrics``."""
    return _gathered(_accelerator(), case, _loader(case, case.dataset))


@older("0.15.0", "dropped", "N=2,B=1,W=2")
@sound("accelerate")
def gathered_ids(case: Case) -> Any:
    """``gather_for_metrics`` of the numbers of the samples."""
    accelerator = _accelerator()
    ids: list[int] = []
    for batch in accelerator.prepare(_loader(case, case.dataset)):
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
    return {"ids": ids, "ordered": True}


@sound("accelerate")
def split_batches(case: Case) -> Any:
    """The same with ``split_batches=True``."""
    size = case.batch_size * case.world_size
    return _gathered(
        _accelerator(split_batches=True), case, DataLoader(case.dataset, batch_size=size)
    )


@older("0.22.0", "crashes", "N=1,B=1,W=2")
@sound("accelerate")
def gathered_objects(case: Case) -> Any:
    """``gather_for_metrics`` of lists with one object for each sample."""
    accelerator = _accelerator()
    ids: list[int] = []
    for batch in accelerator.prepare(_loader(case, case.dataset)):
        ids += accelerator.gather_for_metrics(batch["id"].tolist())
    return {"ids": ids, "ordered": True}


@older("1.13.0", "counted twice", "N=1,B=1,W=2")
@sound("accelerate")
def split_between_processes(case: Case) -> Any:
    """``split_between_processes`` of the numbers of the samples, and ``gather_object``."""
    from accelerate.utils import gather_object

    accelerator = _accelerator()
    with accelerator.split_between_processes(list(range(len(case.dataset)))) as own:
        found = [case.dataset[i]["id"] for i in own]
    return {"ids": gather_object(found)}


@older("0.30.1", "counted twice", "N=4,B=1,W=3")
@sound("accelerate", assumes=("nonempty",))
def split_with_enough_samples(case: Case) -> Any:
    """The same where every rank has a sample."""
    return split_between_processes(case)


@wrong("accelerate", "counted twice", "N=3,B=1,W=2")
def skipped_first_batch(case: Case) -> Any:
    """One batch, and then the others from ``skip_first_batches``, as after a restart."""
    return _resumed(_accelerator(), case)


@wrong("accelerate", "counted twice", "N=2,B=1,W=2")
def skipped_first_batch_dispatched(case: Case) -> Any:
    """The same where rank 0 reads for all ranks (``dispatch_batches=True``)."""
    return _resumed(_accelerator(dispatch_batches=True), case)


def _resumed(accelerator: Any, case: Case) -> Any:
    loader = accelerator.prepare(_loader(case, case.dataset))
    ids: list[int] = []
    for batch in loader:
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
        break
    for batch in accelerator.skip_first_batches(loader, 1):
        ids += accelerator.gather_for_metrics(batch["id"]).tolist()
    return {"ids": ids}


@wrong("accelerate", "counted twice", "N=1,B=1,W=2")
def reduced_sums(case: Case) -> Any:
    """Sums over a prepared loader and ``reduce``: the samples that ``prepare`` repeats count."""
    return _reduced(_accelerator(), case)


@sound("accelerate")
def reduced_sums_without_even_batches(case: Case) -> Any:
    """The same with ``even_batches=False``, so that no sample is repeated."""
    return _reduced(_accelerator(even_batches=False), case)


@wrong("accelerate", "counted twice", "N=1,B=1,W=2")
def unreduced_sums(case: Case) -> Any:
    """The sums of each rank from ``reduce(..., reduction="none")``, which are then gathered."""
    accelerator = _accelerator(even_batches=False)
    seen = sum(len(batch["id"]) for batch in accelerator.prepare(_loader(case, case.dataset)))
    counts = accelerator.gather(accelerator.reduce(torch.tensor(seen), reduction="none"))
    return {"count": int(counts.sum())}


@wrong("accelerate", "counted twice", "N=1,B=1,W=2")
def stream(case: Case) -> Any:
    """A stream without a length that every rank reads (``dispatch_batches=False``)."""
    return _gathered(_accelerator(dispatch_batches=False), case, _loader(case, case.stream()))


@wrong("accelerate", "counted twice", "N=1,B=1,W=2")
def sized_stream(case: Case) -> Any:
    """The same over a stream with a length, of which accelerate asks the padded share."""
    samples = case.stream(sized=True)
    loader = DataLoader(samples, batch_size=case.batch_size)
    return _gathered(_accelerator(dispatch_batches=False), case, loader)


@wrong("accelerate", "counted twice", "N=1,B=1,W=2")
def stream_split_batches(case: Case) -> Any:
    """A stream without a length that every rank reads, with ``split_batches=True``."""
    size = case.batch_size * case.world_size
    accelerator = _accelerator(dispatch_batches=False, split_batches=True)
    return _gathered(accelerator, case, DataLoader(case.stream(), batch_size=size))


@wrong("accelerate", "hangs", "N=3,B=1,W=2", assumes=("nonempty",))
def datasets_stream_of_two_shards(case: Case) -> Any:
    """A stream of ``datasets`` with two shards, which are dealt (``dispatch_batches=False``)."""
    shards = min(2, len(case.dataset))
    stream = case.hf_dataset().to_iterable_dataset(num_shards=shards).with_format("torch")
    return _gathered(_accelerator(dispatch_batches=False), case, _loader(case, stream))


@sound("accelerate")
def stream_counted_by_id(case: Case) -> Any:
    """A stream that every rank reads, and disteval's metric, which counts each id once."""
    accelerator = _accelerator(dispatch_batches=False)
    accuracy = Accuracy(dist_backend="torch_cpu")
    for batch in accelerator.prepare(DataLoader(case.stream(), batch_size=case.batch_size)):
        accuracy.add(case.predict(batch["x"]), batch["label"], ids=batch["id"])
    return {"accuracy": accuracy.compute()["top1"]}


@wrong("accelerate", "crashes", "N=1,B=1,W=3")
def stream_dispatched(case: Case) -> Any:
    """A stream that rank 0 reads for all ranks (``dispatch_batches=True``, the default)."""
    return _gathered(_accelerator(), case, DataLoader(case.stream(), batch_size=case.batch_size))


stream_dispatched_with_enough_samples = sound_where("nonempty", "accelerate", stream_dispatched)
