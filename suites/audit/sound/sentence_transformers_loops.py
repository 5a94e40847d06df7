"""Evaluation loops with the Trainer of sentence-transformers and its evaluators."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from disteval.audit import Case

from suites.audit.sound import sound


def _model(case: Case) -> Any:
    """Return a model of which the embedding of "sample 7" is the class that is predicted for it.

    The cosine of it and of "class 3" is 1 where class 3 is predicted, and 0 elsewhere.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import InputModule

    class Classes(InputModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scores = case.module()

        def preprocess(self, inputs: list[str], *ignored: Any, **more: Any) -> dict[str, Any]:
            numbers = torch.tensor([int(text.rpartition(" ")[2]) for text in inputs])
            return {"numbers": numbers, "known": torch.tensor(["class" in one for one in inputs])}

        def forward(self, features: dict[str, Any], **ignored: Any) -> dict[str, Any]:
            numbers, known = features["numbers"], features["known"]
            asked = [0 if is_class else int(i) for i, is_class in zip(numbers, known, strict=True)]
            x = torch.stack([torch.as_tensor(case.dataset[i]["x"]) for i in asked])
            classes = torch.where(known, numbers, self.scores(x).argmax(dim=1))
            return features | {"sentence_embedding": torch.eye(17)[classes]}

        def save(self, *ignored: Any, **more: Any) -> None:
            raise NotImplementedError

    return SentenceTransformer(modules=[Classes()], device="cpu")


def evaluated(case: Case, evaluator: Any = None, **settings: Any) -> Any:
    """Return what ``evaluate`` of the Trainer returns."""
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    for name in ("transformers", "accelerate", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_eval_batch_size=case.batch_size,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model = _model(case)
    return SentenceTransformerTrainer(model, arguments, evaluator=evaluator, **settings).evaluate()


def pairs(case: Case) -> tuple[list[str], list[str]]:
    """Return the text of each sample, and that of its class."""
    labels = [int(case.dataset[index]["label"]) for index in range(len(case.dataset))]
    return [f"sample {i}" for i in range(len(labels))], [f"class {label}" for label in labels]


@sound("sentence-transformers")
def triplets(case: Case) -> Any:
    """``TripletEvaluator``: each sample is nearer to its class than to one that is not there."""
    from sentence_transformers.sentence_transformer.evaluation import TripletEvaluator

    samples, classes = pairs(case)
    others = ["class 16"] * len(samples)
    settings = {"batch_size": case.batch_size, "write_csv": False}
    found = evaluated(case, TripletEvaluator(samples, classes, others, **settings))
    return {"accuracy": found["eval_cosine_accuracy"]}


@sound("sentence-transformers")
def retrieval(case: Case) -> Any:
    """``InformationRetrievalEvaluator``: the class of each sample is found among all classes."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    samples, classes = pairs(case)
    corpus = {str(label): f"class {label}" for label in range(16)}
    right = {sample: {one.rpartition(" ")[2]} for sample, one in zip(samples, classes, strict=True)}
    found = evaluated(
        case,
        InformationRetrievalEvaluator(
            {sample: sample for sample in samples}, corpus, right, corpus_chunk_size=5,
            batch_size=case.batch_size, write_csv=False,
        ),
    )  # fmt: skip
    return {"accuracy": found["eval_cosine_accuracy@1"]}


@sound("sentence-transformers", "divisible")
def eval_loss_of_full_batches(case: Case) -> Any:
    """``eval_loss`` of a loss that is the mean of its batch."""
    import datasets

    class Mean(torch.nn.Module):  # type: ignore[misc]
        def forward(self, features: Any, labels: Any) -> Any:
            return labels.mean()

    values = [float(case.dataset[i]["value"]) for i in range(len(case.dataset))]
    samples, classes = pairs(case)
    rows = datasets.Dataset.from_dict({"a": samples, "b": classes, "label": values})
    return {"loss": evaluated(case, eval_dataset=rows, loss=Mean())["eval_loss"]}
