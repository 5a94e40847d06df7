"""Evaluation loops with timm."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distribution
from typing import Any

from disteval.audit import Case
from torch.utils.data import DataLoader

from suites.audit.sound import sound


def module(path: str) -> Any:
    """Return a module of timm from its file, as `import timm` needs torchvision."""
    file = str(distribution("timm").locate_file(f"timm/{path}.py"))
    spec: Any = importlib.util.spec_from_file_location(path.replace("/", "_"), file)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@sound("timm")
def timm_evaluator(case: Case) -> Any:
    """``ClassificationEvaluator``, which is told how many samples of a rank are not repeated."""
    evaluation = module("task/evaluator")
    sampler = module("data/distributed_sampler").OrderedDistributedSampler(case.dataset)
    loader: Any = DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=sampler, num_workers=case.num_workers
    )
    limit = evaluation.evaluation_sample_limit(loader)
    evaluator = evaluation.ClassificationEvaluator(max_samples=limit)
    for batch in loader:
        evaluator.update(case.predict(batch["x"]), batch["label"])
    found = evaluator.compute(distributed=True)
    return {"accuracy": found["top1"] / 100, "cross_entropy": found["loss"]}
