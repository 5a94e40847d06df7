"""An evaluation with lm-eval; audit it with disteval audit my_eval:evaluate.

lm-eval fails on a rank that has no document, so every rank must have one.
"""

import datasets
import torch
import torch.distributed as dist
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager


class Model(LM):
    """The planted model, which is asked for the class of a sample by its position."""

    def __init__(self, case):
        super().__init__()
        self._rank, self._world_size, self._device = case.rank, case.world_size, "cpu"
        self.case = case

    def generate_until(self, requests):
        asked = [self.case.dataset[int(request.args[0])]["x"] for request in requests]
        answers = []
        for start in range(0, len(asked), self.case.batch_size):
            x = torch.stack([*map(torch.as_tensor, asked[start : start + self.case.batch_size])])
            answers += [str(int(label)) for label in self.case.predict(x).argmax(dim=1)]
        return answers

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def all_gather(self, tensor):
        parts = [torch.zeros_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def gather_object(self, obj, dst=0):
        parts = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, parts, dst)
        return parts

    def barrier(self):
        dist.barrier()


def evaluate(case):
    rows = [{"text": str(i), "label": str(s["label"])} for i, s in enumerate(case.samples())]
    task = {
        "task": "planted",
        "custom_dataset": lambda **ignored: {"test": datasets.Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{label}}",
        "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match"}],
    }
    manager = TaskManager(include_defaults=False)
    found = simple_evaluate(Model(case), tasks=[task], task_manager=manager, bootstrap_iters=0)
    if found is None:  # on every rank but the first
        return None
    results = found["results"]["planted"]
    return {"accuracy": results["exact_match,none"], "count": results["sample_len"]}


evaluate.assumes = ("nonempty",)
