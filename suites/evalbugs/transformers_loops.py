"""Evaluation loops with the Trainer of transformers, as its users write them."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from disteval.audit import Case
from torch.utils.data import default_collate

from suites.evalbugs.table import older, sound, sound_where, wrong


class _Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """The fields of a case that the models below take."""

    def __init__(self, case: Case) -> None:
        self.dataset = case.dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return _fields(self.dataset[index])


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The same as a stream without a length."""

    def __init__(self, case: Case) -> None:
        self.stream = case.stream()

    def __iter__(self) -> Any:
        return map(_fields, self.stream)


def _fields(sample: dict[str, Any]) -> dict[str, Any]:
    # The Trainer's collator would rename a field "label".
    return {
        "x": torch.as_tensor(sample["x"]),
        "value": torch.as_tensor(sample["value"]),
        "labels": torch.as_tensor(sample["label"]),
    }


class _MeanModel(torch.nn.Module):  # type: ignore[misc]
    """A model that returns the mean loss of its batch, and takes no further arguments."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.scores = case.module()

    def forward(self, x: Any, value: Any, labels: Any = None) -> dict[str, Any]:
        return {"loss": value.mean(), "logits": self.scores(x)}


class _AnyArgumentsModel(_MeanModel):
    """The same model, taking further arguments and ignoring them."""

    def forward(self, x: Any, value: Any, labels: Any = None, **ignored: Any) -> dict[str, Any]:
        return super().forward(x, value, labels)


class _DividingModel(_MeanModel):
    """The same model, dividing by the number of items that the Trainer passes."""

    def forward(self, x: Any, value: Any, labels: Any = None, **more: Any) -> dict[str, Any]:
        items = more.get("num_items_in_batch", len(value))
        return {"loss": value.sum() / items, "logits": self.scores(x)}


def _trainer(
    case: Case, model: Any, compute_metrics: Any = None, data_collator: Any = None, **settings: Any
) -> Any:
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


@wrong("transformers", "weighted wrongly", "N=2,B=3,W=2")
def eval_loss(case: Case) -> Any:
    """``eval_loss`` of ``Trainer.evaluate``, for a model that returns the mean of its batch."""
    return {"loss": _trainer(case, _MeanModel(case)).evaluate(_Samples(case))["eval_loss"]}


@wrong("transformers", "weighted wrongly", "N=1,B=1,W=2")
def eval_loss_of_any_arguments(case: Case) -> Any:
    """``eval_loss`` for a model whose ``forward`` takes and ignores ``**kwargs``."""
    found = _trainer(case, _AnyArgumentsModel(case)).evaluate(_Samples(case))
    return {"loss": found["eval_loss"]}


eval_loss_of_full_batches = sound_where("divisible", "transformers", eval_loss)


@older("4.45.2", "", "")
@wrong("transformers", "weighted wrongly", "N=2,B=1,W=2", assumes=("divisible",))
def eval_loss_of_full_batches_and_any_arguments(case: Case) -> Any:
    """The same for a model whose ``forward`` takes and ignores ``**kwargs``."""
    return eval_loss_of_any_arguments(case)


@wrong("transformers", "weighted wrongly", "N=2,B=3,W=2")
def eval_loss_by_items(case: Case) -> Any:
    """``eval_loss`` for a model that divides by ``num_items_in_batch``."""
    found = _trainer(case, _DividingModel(case)).evaluate(_Samples(case))
    return {"loss": found["eval_loss"]}


@sound("transformers")
def loss_in_compute_metrics(case: Case) -> Any:
    """The loss as the mean of losses of samples, which the model returns as an output."""

    class PerSample(_MeanModel):
        def forward(self, x: Any, value: Any, labels: Any = None) -> dict[str, Any]:
            return {"loss": value.mean(), "losses": value}

    def compute(prediction: Any) -> dict[str, float]:
        return {"mean_loss": float(prediction.predictions.mean())}

    found = _trainer(case, PerSample(case), compute).evaluate(_Samples(case))
    return {"loss": found["eval_mean_loss"]}


@sound("transformers")
def compute_metrics(case: Case) -> Any:
    """``Trainer.evaluate`` with ``compute_metrics``."""
    found = _trainer(case, _MeanModel(case), _accuracy).evaluate(_Samples(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@sound("transformers")
def batch_eval_metrics(case: Case) -> Any:
    """``compute_metrics`` batch by batch (``batch_eval_metrics=True``)."""
    right: list[bool] = []

    def compute(prediction: Any, compute_result: bool) -> dict[str, float]:
        right.extend((prediction.predictions.argmax(dim=1) == prediction.label_ids).tolist())
        return {"accuracy": sum(right) / len(right), "count": len(right)} if compute_result else {}

    trainer = _trainer(case, _MeanModel(case), compute, batch_eval_metrics=True)
    found = trainer.evaluate(_Samples(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@sound("transformers")
def predict(case: Case) -> Any:
    """``Trainer.predict``: the predictions in the order of the data set."""
    found = _trainer(case, _MeanModel(case)).predict(_Samples(case))
    return {"outputs": found.predictions, "ordered": True}


@sound("transformers", assumes=("nonempty", "no_workers"))
def stream_compute_metrics(case: Case) -> Any:
    """``compute_metrics`` over a stream without a length, where every rank has a sample."""
    found = _trainer(case, _MeanModel(case), _accuracy).evaluate(_Stream(case))
    return {"accuracy": found["eval_accuracy"], "count": found["eval_count"]}


@wrong("transformers", "outputs in another order", "N=2,B=1,W=1")
def predict_grouped_by_length(case: Case) -> Any:
    """``Trainer.predict`` of a Trainer that groups samples by length."""

    class Lengths(_Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {**super().__getitem__(index), "input_ids": [0] * (index + 1)}

    def without_tokens(samples: list[dict[str, Any]]) -> Any:
        return default_collate(
            [_fields(sample | {"label": sample["labels"]}) for sample in samples]
        )

    settings = {"train_sampling_strategy": "group_by_length"}
    trainer = _trainer(case, _MeanModel(case), data_collator=without_tokens, **settings)
    return {"outputs": trainer.predict(Lengths(case)).predictions, "ordered": True}


@wrong("transformers", "dropped", "N=2,B=1,W=2")
def inputs_of_batches(case: Case) -> Any:
    """Inputs in ``compute_metrics`` batch by batch (``include_for_metrics=["inputs"]``)."""
    values: list[float] = []

    def compute(prediction: Any, compute_result: bool) -> dict[str, float]:
        values.extend(prediction.inputs["value"].tolist())
        return {"mean": sum(values) / len(values)}

    model = _MeanModel(case)
    model.main_input_name = "value"
    settings = {"batch_eval_metrics": True, "include_for_metrics": ["inputs"]}
    found = _trainer(case, model, compute, **settings).evaluate(_Samples(case))
    return {"mean": found["eval_mean"]} if case.rank == 0 else None
