"""A real mmengine Runner is trained by the estimator as one of ours is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError

from suites.requirements import framework

torch = framework("torch")
framework("mmengine")

from disteval.estimator import Estimator  # noqa: E402
from mmengine.evaluator import BaseMetric, Evaluator  # noqa: E402
from mmengine.model import BaseModel  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from suites.frameworks.estimator import tiny  # noqa: E402

WORKFLOW = [("train", 1), ("val", 1)]
CREATORS = [tiny.training, tiny.validation]


class Model(BaseModel):
    """A linear classifier in the shape of mmengine's models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(tiny.FEATURES)
        self.dropout = torch.nn.Dropout(0.2)
        self.fc = torch.nn.Linear(tiny.FEATURES, tiny.CLASSES)

    def forward(self, x: Any, y: Any, mode: str) -> Any:
        scores = self.fc(self.dropout(self.norm(x)))
        if mode == "loss":
            return {"loss": torch.nn.functional.cross_entropy(scores, y)}
        return scores.argmax(dim=1).eq(y).tolist() if mode == "predict" else scores


class Right(BaseMetric):
    """How many samples are right."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += data_samples

    def compute_metrics(self, results: list[bool]) -> dict[str, int]:
        return {"correct": sum(results), "evaluated": len(results)}


def runner(config: dict[str, Any]) -> Runner:
    return Runner(
        Model(),
        config["work_dir"],
        train_dataloader=tiny.training(config),
        val_dataloader=tiny.validation(config),
        train_cfg={"by_epoch": True, "max_epochs": config.get("epochs", 3)},
        val_cfg={},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
        param_scheduler={"type": "StepLR", "step_size": 2, "end": 9},
        val_evaluator=Evaluator(Right()),
        default_hooks={"logger": {"type": "LoggerHook", "interval": 100}},
        log_level="ERROR",
    )


def started(folder: Path, **options: Any) -> Estimator:
    config = {"work_dir": str(folder)}
    return Estimator(runner, config, "local", 2, progress=False, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("mmengine")
    with started(folder) as estimator:
        first = estimator.fit(CREATORS, WORKFLOW, max_epochs=2)
        estimator.save(folder / "part.pt")
        rest = estimator.fit(CREATORS, WORKFLOW, max_epochs=4)
        estimator.save(folder / "whole.pt")
        yield estimator, first + rest, folder


def right_alone(model: Any) -> int:
    x, y = tiny.validation({}).dataset.tensors
    with torch.no_grad():
        return sum(model(x, y, "predict"))


def test_its_epochs_are_told_as_records_of_all_samples(trained: Any) -> None:
    _, records, _ = trained
    told = [(record["epoch"], record["mode"], record["num_samples"]) for record in records]
    assert told == [(e, mode, n) for e in (1, 2, 3, 4) for mode, n in (("train", 96), ("val", 101))]
    assert records[0]["loss"] > records[-2]["loss"]
    assert [record["lr"] for record in records[::2]] == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert records[-1]["evaluated"] == 101


def test_its_evaluation_is_exact(trained: Any) -> None:
    estimator, records, _ = trained
    right = right_alone(estimator.get_model())
    assert records[-1]["correct"] == estimator.evaluate(tiny.validation)["correct"] == right
    assert sum(estimator.predict(tiny.validation)) == right


def test_it_resumes_to_the_bit(trained: Any, tmp_path: Path) -> None:
    _, records, folder = trained
    with started(tmp_path, seed=5) as estimator:
        estimator.load(folder / "part.pt")
        again = estimator.fit(CREATORS, WORKFLOW, max_epochs=4)
        estimator.save(tmp_path / "resumed.pt")
    assert tiny.facts(again) == tiny.facts(records[4:])
    tiny.assert_same_state(tmp_path / "resumed.pt", folder / "whole.pt")


def test_a_workflow_that_it_can_not_run_is_refused(trained: Any) -> None:
    with pytest.raises(UsageError, match="mmengine's Runner can't run the workflow"):
        trained[0].fit(CREATORS[::-1], WORKFLOW[::-1])
