"""Evaluation loops of current releases, as their users write them."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
from disteval.audit import Case
from torch.utils.data import DataLoader, DistributedSampler

from suites.evalbugs.table import loop


class _Light(torch.utils.data.Dataset):  # type: ignore[misc]
    """The fields of a case that models take, without the number of the sample."""

    def __init__(self, case: Case, *fields: str) -> None:
        self.dataset, self.fields = case.dataset, fields

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.dataset[index]
        return {name: torch.as_tensor(sample[name]) for name in self.fields}


def _accelerator(**settings: Any) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    logging.getLogger("accelerate").setLevel(logging.ERROR)
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))


def _gathered_accuracy(accelerator: Any, case: Case, loader: Any) -> dict[str, float]:
    right = seen = 0
    for batch in loader:
        predicted = case.predict(batch["x"]).argmax(dim=1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["label"]))
        right += int((predicted == labels).sum())
        seen += len(labels)
    return {"accuracy": right / seen, "count": seen}


@loop("accelerate", "sound")
def accelerate_map_style(case: Case) -> Any:
    """``prepare`` of a loader over a map-style data set, and ``gather_for_metrics``."""
    accelerator = _accelerator()
    loader = accelerator.prepare(DataLoader(case.dataset, batch_size=case.batch_size))
    return _gathered_accuracy(accelerator, case, loader)


@loop("accelerate", "defect")
def accelerate_stream(case: Case) -> Any:
    """The same over an ``IterableDataset``, which every rank reads (``dispatch_batches=False``)."""
    accelerator = _accelerator(dispatch_batches=False)
    loader = accelerator.prepare(DataLoader(case.stream(), batch_size=case.batch_size))
    return _gathered_accuracy(accelerator, case, loader)


@loop("accelerate", "defect")
def accelerate_stream_split_batches(case: Case) -> Any:
    """The same with ``split_batches=True``."""
    accelerator = _accelerator(dispatch_batches=False, split_batches=True)
    size = case.batch_size * case.world_size
    loader = accelerator.prepare(DataLoader(case.stream(), batch_size=size))
    return _gathered_accuracy(accelerator, case, loader)


@loop("accelerate", "sound")
def accelerate_stream_dispatched(case: Case) -> Any:
    """An ``IterableDataset`` that rank 0 reads for all ranks (``dispatch_batches=True``)."""
    accelerator = _accelerator(dispatch_batches=True)
    loader = accelerator.prepare(DataLoader(case.stream(), batch_size=case.batch_size))
    return _gathered_accuracy(accelerator, case, loader)


@loop("accelerate", "sound")
def accelerate_split_batches(case: Case) -> Any:
    """A map-style data set with ``split_batches=True``."""
    accelerator = _accelerator(split_batches=True)
    size = case.batch_size * case.world_size
    loader = accelerator.prepare(DataLoader(case.dataset, batch_size=size))
    return _gathered_accuracy(accelerator, case, loader)


@loop("accelerate", "user")
def accelerate_reduced_sums(case: Case) -> Any:
    """Sums over a prepared loader and ``reduce``: the samples that ``prepare`` repeats count."""
    accelerator = _accelerator()
    right = seen = 0
    for batch in accelerator.prepare(DataLoader(case.dataset, batch_size=case.batch_size)):
        right += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    right, seen = accelerator.reduce(torch.tensor([right, seen])).tolist()
    return {"accuracy": right / seen, "count": seen}


@loop("accelerate", "sound")
def accelerate_without_even_batches(case: Case) -> Any:
    """``even_batches=False`` and sums at the end: no sample is repeated."""
    accelerator = _accelerator(even_batches=False)
    right = seen = 0
    for batch in accelerator.prepare(DataLoader(case.dataset, batch_size=case.batch_size)):
        right += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    right, seen = accelerator.reduce(torch.tensor([right, seen])).tolist()
    return {"accuracy": right / seen, "count": seen}


@loop("accelerate", "sound")
def accelerate_gathered_objects(case: Case) -> Any:
    """``gather_for_metrics`` of lists of objects (``use_gather_object=True``)."""
    accelerator = _accelerator()
    ids: list[int] = []
    for batch in accelerator.prepare(DataLoader(case.dataset, batch_size=case.batch_size)):
        ids += accelerator.gather_for_metrics(batch["id"].tolist(), use_gather_object=True)
    return {"ids": ids}


@loop("accelerate", "sound")
def accelerate_split_between_processes(case: Case) -> Any:
    """``split_between_processes`` of a list of numbers, and ``gather_object``."""
    from accelerate.utils import gather_object

    accelerator = _accelerator()
    with accelerator.split_between_processes(list(range(len(case.dataset)))) as own:
        found = [case.dataset[i]["id"] for i in own]
    return {"ids": gather_object(found)}


def _trainer(case: Case, compute_metrics: Any = None) -> Any:
    from transformers import Trainer, TrainingArguments

    logging.getLogger("transformers").setLevel(logging.ERROR)
    folder = tempfile.mkdtemp(prefix="evalbugs-")
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_eval_batch_size=case.batch_size,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        label_names=["labels"],
        remove_unused_columns=False,
        dataloader_num_workers=case.num_workers,
    )
    return Trainer(model=case.module(), args=arguments, compute_metrics=compute_metrics)


@loop("transformers", "defect")
def transformers_eval_loss(case: Case) -> Any:
    """``Trainer.evaluate``: its ``eval_loss``."""
    found = _trainer(case).evaluate(_Light(case, "x", "label", "value"))
    return {"loss": found["eval_loss"]}


@loop("transformers", "sound")
def transformers_compute_metrics(case: Case) -> Any:
    """``Trainer.evaluate`` with ``compute_metrics``."""

    def compute(prediction: Any) -> dict[str, float]:
        right = prediction.predictions.argmax(axis=1) == prediction.label_ids
        return {"accuracy": float(right.mean()), "count": len(right)}

    found = _trainer(case, compute).evaluate(_Light(case, "x", "label", "value"))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@loop("transformers", "sound")
def transformers_predict(case: Case) -> Any:
    """``Trainer.predict``: the predictions in the order of the data set."""
    found = _trainer(case).predict(_Light(case, "x", "label", "value"))
    return {"outputs": found.predictions, "ordered": True}


def _lightning(case: Case, module: Any, method: str) -> Any:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=case.world_size,
        strategy="ddp" if case.world_size > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tempfile.gettempdir(),
    )
    loader = DataLoader(case.dataset, batch_size=case.batch_size, num_workers=case.num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer, getattr(trainer, method)(module, loader)


def _lightning_module(case: Case, test_step: Any, setup: Any = lambda self: None) -> Any:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = case.module()
            setup(self)

        def test_step(self, batch: Any, index: int) -> None:
            test_step(self, batch)

        def predict_step(self, batch: Any, index: int) -> Any:
            return batch["id"]

    return Module()


@loop("lightning", "documented")
def lightning_log(case: Case) -> Any:
    """``Trainer.test`` and ``self.log(..., sync_dist=True)`` of the mean of a batch."""

    def test_step(self: Any, batch: Any) -> None:
        mean = batch["value"].mean()
        self.log("mean", mean, sync_dist=True, on_epoch=True, batch_size=len(batch["value"]))

    _, found = _lightning(case, _lightning_module(case, test_step), "test")
    return {"mean": found[0]["mean"]}


@loop("lightning", "documented")
def lightning_torchmetrics(case: Case) -> Any:
    """``Trainer.test`` with a metric of torchmetrics."""
    import torchmetrics

    def setup(self: Any) -> None:
        self.metric = torchmetrics.MeanMetric()

    def test_step(self: Any, batch: Any) -> None:
        self.metric.update(batch["value"])
        self.log("mean", self.metric, on_epoch=True)

    _, found = _lightning(case, _lightning_module(case, test_step, setup), "test")
    return {"mean": found[0]["mean"]}


@loop("lightning", "documented")
def lightning_log_integer(case: Case) -> Any:
    """``self.log`` of an integer count with ``reduce_fx="sum"``."""

    def test_step(self: Any, batch: Any) -> None:
        self.log("seen", float(len(batch["id"])), reduce_fx="sum", sync_dist=True, on_epoch=True)

    _, found = _lightning(case, _lightning_module(case, test_step), "test")
    return {"count": found[0]["seen"]}


@loop("lightning", "defect")
def lightning_predict(case: Case) -> Any:
    """``Trainer.predict``, whose ranks' predictions are gathered as lists."""
    import torch.distributed as dist

    _, found = _lightning(case, _lightning_module(case, None), "predict")
    own = [int(i) for batch in found for i in batch]
    parts: list[Any] = [None] * case.world_size
    dist.all_gather_object(parts, own)
    return {"ids": sorted({i for part in parts for i in part})}


@loop("ignite", "documented")
def ignite_average(case: Case) -> Any:
    """``auto_dataloader`` and the metric ``Average``."""
    import ignite.distributed as idist
    from ignite.engine import Engine
    from ignite.metrics import Average

    logging.getLogger("ignite").setLevel(logging.ERROR)
    loader = idist.auto_dataloader(
        case.dataset, batch_size=case.batch_size * case.world_size, shuffle=False
    )
    engine = Engine(lambda _engine, batch: batch["value"])
    Average().attach(engine, "mean")
    return {"mean": engine.run(loader).metrics["mean"]}


@loop("ignite", "sound")
def ignite_own_shard(case: Case) -> Any:
    """The metric ``Average`` over a shard that repeats nothing."""
    from ignite.engine import Engine
    from ignite.metrics import Average

    own = list(range(case.rank, len(case.dataset), case.world_size))
    loader = DataLoader(case.dataset, batch_size=case.batch_size, sampler=own)
    average = Average()
    engine = Engine(lambda _engine, batch: average.update(batch["value"]))
    average.reset()
    if own:
        engine.run(loader)
    return {"mean": average.compute()}


def _padded(case: Case) -> Any:
    sampler: Any = DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=False)
    return DataLoader(case.dataset, batch_size=case.batch_size, sampler=sampler)


@loop("torchmetrics", "documented")
def torchmetrics_distributed_sampler(case: Case) -> Any:
    """``Accuracy`` over a loader with ``DistributedSampler``."""
    from torchmetrics import MeanMetric

    metric = MeanMetric()
    for batch in _padded(case):
        metric.update(batch["value"])
    return {"mean": metric.compute()}


def _own(case: Case) -> Any:
    own = list(range(case.rank, len(case.dataset), case.world_size))
    return DataLoader(case.dataset, batch_size=case.batch_size, sampler=own)


@loop("torchmetrics", "sound")
def torchmetrics_sums(case: Case) -> Any:
    """A metric of sums over shards of unequal length, one of which may be empty."""
    from torchmetrics import MeanMetric

    metric = MeanMetric()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in _own(case):
            metric.update(batch["value"])
        return {"mean": metric.compute()}


@loop("torchmetrics", "defect")
def torchmetrics_cat_of_scalars(case: Case) -> Any:
    """``CatMetric`` that is updated with one number at a time, unevenly often on the ranks."""
    from torchmetrics import CatMetric

    metric = CatMetric()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in _own(case):
            for value in batch["value"]:
                metric.update(value)
        return {"sum": metric.compute().sum()}


@loop("torchmetrics", "defect")
def torchmetrics_auroc(case: Case) -> Any:
    """``BinaryAUROC`` where a rank may have no samples."""
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in _own(case):
            metric.update(batch["value"] / 64, batch["label"] % 2)
        return {"auroc": metric.compute()}


@loop("datasets", "sound")
def datasets_map_style(case: Case) -> Any:
    """``split_dataset_by_node`` of a map-style data set."""
    from datasets.distributed import split_dataset_by_node

    own = split_dataset_by_node(case.hf_dataset(), case.rank, case.world_size)
    return _ids_of(case, own["id"])


@loop("datasets", "sound")
def datasets_stream(case: Case) -> Any:
    """``split_dataset_by_node`` of a stream with two shards, through a loader with workers."""
    from datasets.distributed import split_dataset_by_node

    shards = min(2, len(case.dataset))
    stream = case.hf_dataset().to_iterable_dataset(num_shards=shards)
    own = split_dataset_by_node(stream, case.rank, case.world_size).with_format("torch")
    loader = DataLoader(own, batch_size=case.batch_size, num_workers=case.num_workers)
    return _ids_of(case, [int(i) for batch in loader for i in batch["id"]])


def _ids_of(case: Case, own: Any) -> dict[str, Any]:
    import torch.distributed as dist

    parts: list[Any] = [None] * case.world_size
    dist.all_gather_object(parts, [int(i) for i in own])
    return {"ids": [i for part in parts for i in part]}


@loop("torch", "documented")
def torch_drop_last(case: Case) -> Any:
    """``DistributedSampler(drop_last=True)``, which drops the tail."""
    sampler: Any = DistributedSampler(
        case.dataset, case.world_size, case.rank, shuffle=False, drop_last=True
    )
    loader = DataLoader(case.dataset, batch_size=case.batch_size, sampler=sampler)
    return _ids_of(case, [int(i) for batch in loader for i in batch["id"]])
