"""Metrics of a validation count each sample once, or the validation is refused."""

from __future__ import annotations

from typing import Any

import pytest
from disteval import UsageError
from disteval.metrics import Accuracy, CrossEntropy, Mean

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

from disteval.estimator import EpochBasedRunner  # noqa: E402
from disteval.estimator.hooks import EvalHook  # noqa: E402

from suites.estimator.test_runner import loader, make  # noqa: E402
from suites.estimator.tiny import samples  # noqa: E402

pytestmark = needs("torch")


@pytest.mark.parametrize(("drop_last", "message"), [(False, "2 samples twice"), (True, "out 1 sa")])
def test_a_validation_sampler_that_counts_wrongly_is_refused(drop_last: bool, message: str) -> None:
    dataset = samples(10)
    sampler = data.DistributedSampler(dataset, 3, 0, shuffle=False, drop_last=drop_last)
    with pytest.raises(UsageError, match=message):
        make().run([data.DataLoader(dataset, 4, sampler=sampler)], [("val", 1)])


class Regression(torch.nn.Module):
    """A model whose scores are no classes; ``scored`` says which batches it scores."""

    def __init__(self, scored: Any = lambda x: True) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 1)
        self.scored = scored

    def train_step(self, batch: Any, optimizer: Any) -> dict[str, Any]:
        loss = (self.fc(batch[0])[:, 0] - batch[1]).square().mean()
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch[1])}

    def val_step(self, batch: Any, optimizer: Any) -> dict[str, Any]:
        outputs = self.train_step(batch, optimizer)
        if self.scored(batch[0]):
            outputs |= {"scores": self.fc(batch[0]), "labels": batch[1]}
        return outputs


class MeanDistance(Mean):
    """A metric of a regression."""

    def add(self, scores: Any, labels: Any) -> None:
        super().add((scores[:, 0] - labels).abs())


class MultipleResults(Accuracy):
    """A metric with a result whose name begins with that of the metric."""

    def from_sums(self, sums: Any, size: int) -> dict[str, Any]:
        return {"samples": size, "others": 0}


def regress(scored: Any = lambda x: True, **options: Any) -> Any:
    runner = EpochBasedRunner(Regression(scored), max_epochs=1, **options)
    runner.optimizer = torch.optim.SGD(runner.model.parameters(), lr=0.1)
    runner.register_training_hooks(None, {})
    return runner


def targets() -> Any:
    x, y = samples(20).tensors
    return data.DataLoader(data.TensorDataset(x, y.float()), 8)


def test_a_validation_of_a_regression_assumes_no_classes() -> None:
    [record] = regress().run([targets()], [("val", 1)])
    assert record["loss"] > 0
    assert "accuracy" not in record


def test_metrics_given_once_are_in_every_validation() -> None:
    runner = regress(metrics={"distance": MeanDistance()})
    runner.register_hook(EvalHook(targets()))
    records = runner.run([targets(), targets()], [("train", 1), ("val", 1)])
    found = [record["distance"] for record in records if record["mode"] == "val"]
    x, y = targets().dataset.tensors
    expected = (runner.model.fc(x)[:, 0] - y).abs().mean().item()
    assert found == [found[0]] * 2 == pytest.approx([expected] * 2)
    assert records[-1]["evaluated"] == 20


@pytest.mark.parametrize("scored", [lambda x: False, lambda x: len(x) == 8], ids=["no", "some"])
def test_metrics_that_can_not_be_computed_are_an_error(scored: Any) -> None:
    runner = regress(scored, metrics={"distance": MeanDistance()})
    with pytest.raises(UsageError, match="Regression"):
        runner.run([targets()], [("val", 1)])


def cut(outputs: Any) -> Any:
    return {"scores": outputs["scores"][:-1], "labels": outputs["labels"][:-1]}


def named(name: str) -> Any:
    return lambda outputs: {"log_vars": {name: 0.5}}


HITS = {"hits": Accuracy(topk=(1, 2))}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "scores without labels": (lambda outputs: {"labels": None}, None, "only one"),
    "no scores of classes": (lambda o: {"scores": o["scores"].squeeze()}, None, "1 .*Tiny"),
    "no score of some samples": (cut, None, "3 of 17"),
    "no score of some samples, for a metric": (cut, {"accuracy": Accuracy()}, "3 of 17"),
    "the epoch's name": (named("epoch"), None, "'epoch'"),
    "the mode's name": (named("mode"), None, "'mode'"),
    "the count's name": (named("num_samples"), None, "'num_samples'"),
    "the name of what was evaluated": (named("evaluated"), None, "'evaluated'"),
    "the metric's name": (named("loss"), {"loss": CrossEntropy()}, "'loss'"),
    "the usual metric's name": (named("accuracy"), None, "'accuracy'"),
    "a result's name": (named("hits_top1"), HITS, "'hits_top1'"),
    "two results of one name": (named("mine"), HITS | {"hits_top1": Accuracy()}, "'hits_top1'"),
    "a result with the count's name": (named("mine"), {"num": MultipleResults()}, "'num_samples'"),
}
"""What a validation step returns besides, with which metrics, and what is named."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_validation_that_can_not_be_counted_is_refused(name: str) -> None:
    change, metrics, told = REFUSED[name]
    runner = make(metrics=metrics)
    step = runner.model.val_step

    def changed(*arguments: Any) -> Any:
        outputs = step(*arguments)
        outputs |= change(outputs)
        return {key: value for key, value in outputs.items() if value is not None}

    runner.model.val_step = changed
    with pytest.raises(UsageError, match=told):
        runner.run([loader(17)], [("val", 1)])


@pytest.mark.parametrize(
    "metrics", [Accuracy(), {"accuracy": Accuracy}, {"epoch": Accuracy()}, {"mode": Accuracy()}]
)
def test_metrics_that_are_none_or_have_the_name_of_an_entry_are_refused(metrics: Any) -> None:
    with pytest.raises(UsageError, match=r"Accuracy|'epoch'|'mode'"):
        make(metrics=metrics)
