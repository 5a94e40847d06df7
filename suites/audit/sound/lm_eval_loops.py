"""Evaluation loops with lm-evaluation-harness, for a model that shares out documents itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case

from suites.audit.sound import sound


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


def evaluated(case: Case, process_results: Any, answer: Any = None, **settings: Any) -> Any:
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


def scores(doc: Any, answers: list[str]) -> dict[str, float]:
    """Return the accuracy and the value of a document."""
    return {"accuracy": float(answers[0] == str(doc["label"])), "mean": doc["value"]}


@sound("lm_eval", "nonempty")
def evaluate_enough_documents(case: Case) -> Any:
    """``evaluate`` where every rank has a document."""
    found = evaluated(case, scores)
    return found and {
        "accuracy": found["accuracy,none"],
        "mean": found["mean,none"],
        "count": found["sample_len"],
    }
