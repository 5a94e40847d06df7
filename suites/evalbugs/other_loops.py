"""Evaluation loops with ignite, mmengine, torcheval, datasets and plain torch."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case
from torch.utils.data import DataLoader

from suites.evalbugs.parts import all_ids, own_loader, padded_loader
from suites.evalbugs.table import older, sound, wrong


def _ignite(metric: Any, name: str, loader: Any, output: Any) -> Any:
    from ignite.engine import Engine

    logging.getLogger("ignite").setLevel(logging.ERROR)
    engine = Engine(lambda _engine, batch: output(batch))
    metric.attach(engine, name)
    return engine.run(loader).metrics[name]


@wrong(
    "pytorch-ignite", "documented", "counted twice", "N=2,B=1,W=3",
    "https://docs.pytorch.org/ignite/generated/ignite.distributed.auto.auto_dataloader.html",
)  # fmt: skip
def ignite_average(case: Case) -> Any:
    """``auto_dataloader`` and the metric ``Average``."""
    import ignite.distributed as idist
    from ignite.metrics import Average

    size = case.batch_size * case.world_size
    workers = case.num_workers * case.world_size
    loader = idist.auto_dataloader(
        case.dataset, batch_size=size, num_workers=workers, shuffle=False
    )
    return {"mean": _ignite(Average(), "mean", loader, lambda batch: batch["value"][:, None])}


@wrong(
    "pytorch-ignite", "documented", "crashes", "N=1,B=1,W=2",
    "https://github.com/pytorch/ignite/issues/1242",
)  # fmt: skip
def ignite_own_share(case: Case) -> Any:
    """The metric ``Average`` over shares that repeat nothing, of which some may be empty."""
    from ignite.metrics import Average

    return {
        "mean": _ignite(Average(), "mean", own_loader(case), lambda batch: batch["value"][:, None])
    }


@sound("pytorch-ignite")
def ignite_own_share_with_enough_samples(case: Case) -> Any:
    """The same where every rank has a sample."""
    return ignite_own_share(case)


ignite_own_share_with_enough_samples.assumes = ("nonempty",)  # type: ignore[attr-defined]


@older(
    "0.4.10", "defect", "weighted wrongly", "N=4,B=1,W=2",
    "https://github.com/pytorch/ignite/pull/2803",
)  # fmt: skip
@sound("pytorch-ignite")
def ignite_computed_before_the_end(case: Case) -> Any:
    """``Average`` that is computed after the first batch of each rank, and at the end."""
    from ignite.metrics import Average

    metric = Average()
    for number, batch in enumerate(own_loader(case)):
        metric.update(batch["value"][:, None])
        if number == 0:
            metric.compute()
    return {"mean": metric.compute()}


ignite_computed_before_the_end.assumes = ("even",)  # type: ignore[attr-defined]


@wrong(
    "pytorch-ignite", "defect", "crashes", "N=3,B=1,W=2",
    "https://github.com/Project-MONAI/MONAI/issues/1531",
)  # fmt: skip
def ignite_epoch_metric(case: Case) -> Any:
    """``EpochMetric``, which gathers every prediction, over shares of unequal length."""
    from ignite.metrics import EpochMetric

    metric = EpochMetric(lambda found, wanted: float((found.argmax(1) == wanted).float().mean()))
    output = lambda batch: (case.predict(batch["x"]), batch["label"])  # noqa: E731
    return {"accuracy": _ignite(metric, "accuracy", own_loader(case), output)}


ignite_epoch_metric.assumes = ("nonempty",)  # type: ignore[attr-defined]


@sound("mmengine-lite")
def mmengine_evaluator(case: Case) -> Any:
    """The evaluator over ``DistributedSampler``; it is told the number of samples."""
    from mmengine.evaluator import BaseMetric, Evaluator

    class Right(BaseMetric):  # type: ignore[misc]
        def process(self, data_batch: Any, data_samples: Any) -> None:
            self.results.extend(int(sample["right"]) for sample in data_samples)

        def compute_metrics(self, results: list[int]) -> dict[str, float]:
            return {"accuracy": sum(results) / len(results), "count": len(results)}

    evaluator = Evaluator(Right())
    for batch in padded_loader(case):
        right = case.predict(batch["x"]).argmax(dim=1) == batch["label"]
        evaluator.process([{"right": each} for each in right], batch)
    return evaluator.evaluate(len(case.dataset))


@sound("torcheval")
def torcheval_mean(case: Case) -> Any:
    """``Mean`` and ``sync_and_compute`` over shares of unequal length."""
    from torcheval.metrics import Mean
    from torcheval.metrics.toolkit import sync_and_compute

    metric = Mean()
    for batch in own_loader(case):
        metric.update(batch["value"])
    found = sync_and_compute(metric)
    return None if found is None else {"mean": found}


@sound("torcheval")
def torcheval_cat(case: Case) -> Any:
    """``Cat``, which gathers every value, and ``sync_and_compute``."""
    from torcheval.metrics import Cat
    from torcheval.metrics.toolkit import sync_and_compute

    metric = Cat()
    for batch in own_loader(case):
        metric.update(batch["value"])
    found = sync_and_compute(metric)
    return None if found is None else {"sum": found.sum(), "count": len(found)}


@sound("torcheval")
def torcheval_auroc(case: Case) -> Any:
    """``BinaryAUROC``, which keeps lists, and ``sync_and_compute``."""
    from torcheval.metrics import BinaryAUROC
    from torcheval.metrics.toolkit import sync_and_compute

    metric = BinaryAUROC()
    for batch in own_loader(case):
        metric.update(batch["value"] / 64, batch["label"] % 2)
    found = sync_and_compute(metric)
    return None if found is None else {"auroc": found}


@wrong(
    "datasets", "defect", "crashes", "N=1,B=1,W=2",
    "https://github.com/huggingface/datasets/issues/7443",
)  # fmt: skip
def datasets_map_style(case: Case) -> Any:
    """``split_dataset_by_node`` of a data set with a length, with fewer samples than ranks."""
    from datasets.distributed import split_dataset_by_node

    own = split_dataset_by_node(case.hf_dataset(), case.rank, case.world_size)
    return {"ids": all_ids(case, own["id"])}


@sound("datasets")
def datasets_map_style_with_enough_samples(case: Case) -> Any:
    """The same where every rank has a sample."""
    return datasets_map_style(case)


datasets_map_style_with_enough_samples.assumes = ("nonempty",)  # type: ignore[attr-defined]


@sound("datasets")
def datasets_stream(case: Case) -> Any:
    """``split_dataset_by_node`` of a stream with two shards, through a loader with workers."""
    return _of_stream(case, lambda stream: stream)


@sound("datasets")
def datasets_stream_shuffled(case: Case) -> Any:
    """The same, shuffled with one seed on all ranks."""
    return _of_stream(case, lambda stream: stream.shuffle(seed=case.seed, buffer_size=4))


@older(
    "5.0.1", "defect", "counted twice", "N=2,B=1,W=2",
    "https://github.com/huggingface/datasets/issues/8568",
)  # fmt: skip
@sound("datasets")
def datasets_stream_skipped(case: Case) -> Any:
    """A share of a stream with two shards, and ``skip`` of no samples, as at the first start."""
    return _of_stream(case, lambda stream: stream, lambda own: own.skip(0))


@older(
    "4.5.0", "defect", "counted twice", "N=1,B=1,W=2",
    "https://github.com/huggingface/datasets/issues/7868",
)  # fmt: skip
@sound("datasets")
def datasets_streams_interleaved(case: Case) -> Any:
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


@wrong(
    "torch", "documented", "dropped", "N=1,B=1,W=2",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)  # fmt: skip
def torch_drop_last(case: Case) -> Any:
    """``DistributedSampler(drop_last=True)``, which drops the tail."""
    loader = padded_loader(case, drop_last=True)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}


@wrong(
    "torch", "user", "counted twice", "N=5,B=2,W=1,workers=2",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset",
)  # fmt: skip
def torch_stream_of_every_worker(case: Case) -> Any:
    """A stream through a loader with workers, each of which reads all of it."""
    stream = case.stream()
    loader = DataLoader(stream, batch_size=case.batch_size, num_workers=case.num_workers)
    ids = [int(i) for batch in loader for i in batch["id"]]
    return {"ids": ids} if case.rank == 0 else None


@wrong(
    "torch", "documented", "counted twice", "N=2,B=1,W=3",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)  # fmt: skip
def torch_distributed_sampler(case: Case) -> Any:
    """``DistributedSampler``, sums of each rank, and ``all_reduce``."""
    sums = torch.zeros(2)
    for batch in padded_loader(case):
        sums += torch.stack([batch["value"].sum(), torch.tensor(float(len(batch["value"])))])
    dist.all_reduce(sums)
    return {"mean": sums[0] / sums[1]}


@sound("torch")
def torch_own_share(case: Case) -> Any:
    """Shares that repeat nothing, sums of each rank, and ``all_reduce``."""
    sums = torch.zeros(2)
    for batch in own_loader(case):
        sums += torch.stack([batch["value"].sum(), torch.tensor(float(len(batch["value"])))])
    dist.all_reduce(sums)
    return {"mean": sums[0] / sums[1], "count": int(sums[1])}
