"""Evaluation loops with Lightning's Trainer and Fabric, as their users write them."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from disteval.audit import Case
from disteval.metrics import Accuracy
from torch.utils.data import DataLoader

from suites.evalbugs.parts import all_ids, own_loader
from suites.evalbugs.table import older, sound, sound_where, wrong

Step = Callable[[Any, Any], Any]


def _run(case: Case, method: str, step: Step, *, own: bool = False, metric: Any = None) -> Any:
    """Call a method of the Trainer with a module whose test and prediction step is ``step``."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = case.module()
            self.metric = metric

        def test_step(self, batch: Any, index: int) -> None:
            step(self, batch)

        def predict_step(self, batch: Any, index: int) -> Any:
            return step(self, batch)

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    loader = DataLoader(case.dataset, batch_size=case.batch_size, num_workers=case.num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu",
            devices=case.world_size,
            strategy="ddp" if case.world_size > 1 else "auto",
            use_distributed_sampler=not own,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tempfile.gettempdir(),
        )
        settings = {"verbose": False} if method == "test" else {}
        return getattr(trainer, method)(Module(), own_loader(case) if own else loader, **settings)


def _log_mean(module: Any, batch: Any) -> None:
    value = batch["value"]
    module.log("mean", value.mean(), sync_dist=True, on_epoch=True, batch_size=len(value))


def _log_metric(module: Any, batch: Any) -> None:
    module.metric.update(batch["value"])
    module.log("mean", module.metric, on_epoch=True)


@wrong("pytorch-lightning", "counted twice", "N=2,B=1,W=3")
def log(case: Case) -> Any:
    """``Trainer.test`` and ``self.log(..., sync_dist=True)`` of the mean of a batch."""
    [found] = _run(case, "test", _log_mean)
    return {"mean": found["mean"]}


@wrong("pytorch-lightning", "counted twice", "N=2,B=1,W=3")
def log_torchmetrics(case: Case) -> Any:
    """``Trainer.test`` with a metric of torchmetrics."""
    import torchmetrics

    [found] = _run(case, "test", _log_metric, metric=torchmetrics.MeanMetric())
    return {"mean": found["mean"]}


@older("2.0.6", "", "")
@wrong("pytorch-lightning", "weighted wrongly", "N=3,B=1,W=2", assumes=("nonempty",))
def log_own_sampler(case: Case) -> Any:
    """``self.log(..., sync_dist=True)`` over shares that repeat nothing."""
    [found] = _run(case, "test", _log_mean, own=True)
    return {"mean": found["mean"]}


@sound("pytorch-lightning", assumes=("nonempty",))
def log_torchmetrics_own_sampler(case: Case) -> Any:
    """A metric of torchmetrics over shares that repeat nothing, where every rank has a sample."""
    import torchmetrics

    [found] = _run(case, "test", _log_metric, own=True, metric=torchmetrics.MeanMetric())
    return {"mean": found["mean"]}


@sound("pytorch-lightning")
def test_counted_by_id(case: Case) -> Any:
    """``Trainer.test`` and disteval's metric, which counts each id once."""
    accuracy = Accuracy(dist_backend="torch_cpu")

    def step(module: Any, batch: Any) -> None:
        accuracy.add(case.predict(batch["x"]), batch["label"], ids=batch["id"])

    _run(case, "test", step)
    return {"accuracy": accuracy.compute()["top1"]}


@wrong("pytorch-lightning", "crashes", "N=1,B=1,W=2")
def predict(case: Case) -> Any:
    """``Trainer.predict``, and a gathering of the ranks' lists."""
    found = _run(case, "predict", lambda module, batch: batch["id"])
    return {"ids": all_ids(case, [i for batch in found for i in batch])}


predict_with_enough_samples = sound_where("nonempty", "pytorch-lightning", predict)


@wrong("pytorch-lightning", "dropped", "N=3,B=1,W=2", assumes=("nonempty",))
def fabric_reduced_counts(case: Case) -> Any:
    """``Fabric.all_reduce`` of two counts, of which the ratio is taken."""
    from lightning_fabric import Fabric

    strategy = "ddp" if case.world_size > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=case.world_size, strategy=strategy)
    fabric.launch()
    right = seen = 0
    for batch in own_loader(case):
        right += int((case.predict(batch["x"]).argmax(dim=1) == batch["label"]).sum())
        seen += len(batch["label"])
    right, seen = fabric.all_reduce((right, seen))  # the means over the ranks
    return {"accuracy": float(right / seen)}
