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

from suites.audit.sound import sound
from suites.audit.sound.parts import all_ids, own_loader

Step = Callable[[Any, Any], Any]


def run_trainer(
    case: Case, method: str, step: Step, *, own: bool = False, metric: Any = None
) -> Any:
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


def log_mean(module: Any, batch: Any) -> None:
    """Log the mean of a batch."""
    value = batch["value"]
    module.log("mean", value.mean(), sync_dist=True, on_epoch=True, batch_size=len(value))


def log_metric(module: Any, batch: Any) -> None:
    """Update a metric of torchmetrics and log it."""
    module.metric.update(batch["value"])
    module.log("mean", module.metric, on_epoch=True)


@sound("pytorch-lightning", "nonempty")
def log_torchmetrics_own_sampler(case: Case) -> Any:
    """A metric of torchmetrics over shares that repeat nothing, where every rank has a sample."""
    import torchmetrics

    [found] = run_trainer(case, "test", log_metric, own=True, metric=torchmetrics.MeanMetric())
    return {"mean": found["mean"]}


@sound("pytorch-lightning")
def test_counted_by_id(case: Case) -> Any:
    """``Trainer.test`` and disteval's metric, which counts each id once."""
    accuracy = Accuracy(dist_backend="torch_cpu")

    def step(module: Any, batch: Any) -> None:
        accuracy.add(case.predict(batch["x"]), batch["label"], ids=batch["id"])

    run_trainer(case, "test", step)
    return {"accuracy": accuracy.compute()["top1"]}


@sound("pytorch-lightning", "nonempty")
def predict_with_enough_samples(case: Case) -> Any:
    """``Trainer.predict``, and a gathering of the ranks' lists."""
    found = run_trainer(case, "predict", lambda module, batch: batch["id"])
    return {"ids": all_ids(case, [i for batch in found for i in batch])}
