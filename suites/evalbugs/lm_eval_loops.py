"""Evaluation loops with lm-evaluation-harness, for a model that shares out documents itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case

from suites.evalbugs.table import sound_where, wrong


def _model(case: Case, answer: Callable[[list[str]], list[str]]) -> Any:
    """Return a model with what a subclass of ``LM`` must have where ranks share the documents."""
    from lm_eval.api.model import LM

    class Model(LM):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._rank, self._world_size, self._device = case.rank, case.world_size, "cpu"

        def all_gather(self, tensor: Any) -> Any:
            parts = [torch.zeros_like(tensor) for _ in range(case.world_size)]
            dist.all_gather(parts, tensor)
            return torch.stack(parts)

        def gather_object(self, obj: Any, dst: int = 0) -> Any:
            parts: Any = [None] * case.world_size if case.rank == dst else None
            dist.gather_object(obj, parts, dst)
            return parts

        def barrier(self) -> None:
            dist.barrier()

        def generate_until(self, requests: list[Any]) -> list[str]:
            return answer([one.args[0] for one in requests])

        def loglikelihood(self, requests: list[Any]) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    return Model()


def _evaluate(case: Case, process_results: Any, answer: Any = None, **settings: Any) -> Any:
    """Return the results of a task that asks for the class of each sample; None where rank > 0."""

    def predicted(prompts: list[str]) -> list[str]:
        asked = [int(prompt.rpartition(" ")[2]) for prompt in prompts]
        x = torch.stack([torch.as_tensor(case.dataset[i]["x"]) for i in asked])
        return [str(int(label)) for label in case.predict(x).argmax(dim=1)]

    import datasets
    from lm_eval import evaluate
    from lm_eval.tasks import TaskManager

    for name in ("lm_eval", "lm-eval"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows = [
        {"number": i, "label": int(one["label"]), "value": float(one["value"])}
        for i, one in enumerate(map(case.dataset.__getitem__, range(len(case.dataset))))
    ]
    splits = {
        "test": datasets.Dataset.from_list(rows),
        "train": datasets.Dataset.from_list([row | {"number": -1, "label": i}
                                             for i, row in enumerate(rows[:1] * 100)]),
    }  # fmt: skip
    task = {
        "task": "planted",
        "custom_dataset": lambda **ignored: splits,
        "training_split": "train",
        "test_split": "test",
        "num_fewshot": 0,
        "output_type": "generate_until",
        "doc_to_text": "What is the class of {{number}}",
        "doc_to_target": "{{label}}",
        "process_results": process_results,
        "generation_kwargs": {"until": ["\n"]},
        "metric_list": [],
        **settings,
    }
    loaded = TaskManager(include_defaults=False).load([task])
    loaded["tasks"]["planted"].set_fewshot_seed(1234)  # as simple_evaluate does by default
    found = evaluate(
        _model(case, answer or predicted), loaded, bootstrap_iters=0, log_samples=False
    )
    return found and found["results"]["planted"]


def _scores(doc: Any, answers: list[str]) -> dict[str, float]:
    return {"accuracy": float(answers[0] == str(doc["label"])), "mean": doc["value"]}


@wrong("lm_eval", "crashes", "N=1,B=1,W=2")
def evaluate(case: Case) -> Any:
    """``evaluate`` where a rank may have no document."""
    found = _evaluate(case, _scores)
    return found and {
        "accuracy": found["accuracy,none"],
        "mean": found["mean,none"],
        "count": found["sample_len"],
    }


evaluate_enough_documents = sound_where("nonempty", "lm_eval", evaluate)


@wrong("lm_eval", "differs from one rank", "N=3,B=1,W=3", assumes=("nonempty",))
def metric_of_some_documents(case: Case) -> Any:
    """A metric that ``process_results`` returns for the documents of a group."""

    def of_even_classes(doc: Any, answers: list[str]) -> dict[str, float]:
        scores = _scores(doc, answers)
        return scores | ({"even": scores["mean"]} if doc["label"] % 2 == 0 else {})

    found = _evaluate(case, of_even_classes)
    # Without such a document, one rank has no such metric either.
    return found and {"mean": found["mean,none"], "even": found.get("even,none", -1.0)}


@wrong("lm_eval", "differs from one rank", "N=2,B=1,W=2", assumes=("nonempty",))
def one_example(case: Case) -> Any:
    """An example before each question, for a model that repeats the example's answer."""

    def repeated(prompts: list[str]) -> list[str]:
        return [prompt.partition("\n\n")[0].rpartition(" ")[2] for prompt in prompts]

    found = _evaluate(
        case, lambda doc, answers: {"example": float(answers[0])}, repeated, num_fewshot=1
    )
    return found and {"example": found["example,none"]}
