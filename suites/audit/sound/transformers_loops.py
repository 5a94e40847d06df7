"""Evaluation loops with the Trainer of transformers, as its users write them."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from disteval.audit import Case

from suites.audit.sound import sound


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """The fields of a case that the models below take."""

    def __init__(self, case: Case) -> None:
        self.dataset = case.dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return fields_of(self.dataset[index])


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The same as a stream without a length."""

    def __init__(self, case: Case) -> None:
        self.stream = case.stream()

    def __iter__(self) -> Any:
        return map(fields_of, self.stream)


def fields_of(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what the models below take."""
    # The Trainer's collator would rename a field "label".
    return {
        "x": torch.as_tensor(sample["x"]),
        "value": torch.as_tensor(sample["value"]),
        "labels": torch.as_tensor(sample["label"]),
    }


class MeanModel(torch.nn.Module):  # type: ignore[misc]
    """A model that returns the mean loss of its batch, and takes no further arguments."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.scores = case.module()

    def forward(self, x: Any, value: Any, labels: Any = None) -> dict[str, Any]:
        return {"loss": value.mean(), "logits": self.scores(x)}


def make_trainer(
    case: Case, model: Any, compute_metrics: Any = None, data_collator: Any = None, **settings: Any
) -> Any:
    """Return a Trainer on the CPU that writes nothing."""
    from transformers import Trainer, TrainingArguments

    logging.getLogger("transformers").setLevel(logging.ERROR)
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is written by an evaluation
        per_device_eval_batch_size=case.batch_size,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=case.num_workers,
        **settings,
    )
    return Trainer(model, arguments, data_collator, compute_metrics=compute_metrics)


def _accuracy(prediction: Any) -> dict[str, float]:
    right = prediction.predictions.argmax(axis=1) == prediction.label_ids
    return {"accuracy": float(right.mean()), "count": len(right)}


@sound("transformers", "divisible")
def eval_loss_of_full_batches(case: Case) -> Any:
    """``eval_loss`` of ``Trainer.evaluate``, for a model that returns the mean of its batch."""
    return {"loss": make_trainer(case, MeanModel(case)).evaluate(Samples(case))["eval_loss"]}


@sound("transformers")
def loss_in_compute_metrics(case: Case) -> Any:
    """The loss as the mean of losses of samples, which the model returns as an output."""

    class PerSample(MeanModel):
        def forward(self, x: Any, value: Any, labels: Any = None) -> dict[str, Any]:
            return {"loss": value.mean(), "losses": value}

    def compute(prediction: Any) -> dict[str, float]:
        return {"mean_loss": float(prediction.predictions.mean())}

    found = make_trainer(case, PerSample(case), compute).evaluate(Samples(case))
    return {"loss": found["eval_mean_loss"]}


@sound("transformers")
def compute_metrics(case: Case) -> Any:
    """``Trainer.evaluate`` with ``compute_metrics``."""
    found = make_trainer(case, MeanModel(case), _accuracy).evaluate(Samples(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@sound("transformers")
def batch_eval_metrics(case: Case) -> Any:
    """``compute_metrics`` batch by batch (``batch_eval_metrics=True``)."""
    right: list[bool] = []

    def compute(prediction: Any, compute_result: bool) -> dict[str, float]:
        right.extend((prediction.predictions.argmax(dim=1) == prediction.label_ids).tolist())
        return {"accuracy": sum(right) / len(right), "count": len(right)} if compute_result else {}

    trainer = make_trainer(case, MeanModel(case), compute, batch_eval_metrics=True)
    found = trainer.evaluate(Samples(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@sound("transformers")
def predict(case: Case) -> Any:
    """``Trainer.predict``: the predictions in the order of the data set."""
    found = make_trainer(case, MeanModel(case)).predict(Samples(case))
    return {"outputs": found.predictions, "ordered": True}


@sound("transformers", "nonempty", "no_workers")
def stream_compute_metrics(case: Case) -> Any:
    """``compute_metrics`` over a stream without a length, where every rank has a sample."""
    found = make_trainer(case, MeanModel(case), _accuracy).evaluate(_Stream(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}
