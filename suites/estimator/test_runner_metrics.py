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


def test_scores_without_labels_are_refused() -> None:
    runner = make()
    runner.model.val_step = lambda batch, optimizer: {
        "log_vars": {}, "num_samples": 1, "scores": torch.ones(1, 2),
    }  # fmt: skip
    with pytest.raises(UsageError, match="only one"):
        runner.run([loader()], [("val", 1)])


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


def test_scores_of_classes_in_some_batches_alone_are_an_error() -> None:
    runner = make()
    step = runner.model.val_step

    def squeezed(batch: Any, optimizer: Any) -> Any:
        outputs = step(batch, optimizer)
        return outputs | {"scores": outputs["scores"].squeeze()}

    runner.model.val_step = squeezed
    with pytest.raises(UsageError, match="1 batches of Tiny"):
        runner.run([loader(17)], [("val", 1)])


@pytest.mark.parametrize("name", ["epoch", "mode", "num_samples", "evaluated"])
def test_names_that_would_replace_entries_of_a_record_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'"):
        make(metrics={name: Accuracy()})
    runner = make()
    runner.model.val_step = lambda batch, optimizer: {"log_vars": {name: 7}, "num_samples": 8}
    with pytest.raises(UsageError, match=f"'{name}'"):
        runner.run([loader()], [("val", 1)])


@pytest.mark.parametrize(
    ("name", "variables", "metrics"),
    [
        ("loss", {"loss": 0.5}, {"loss": CrossEntropy()}),
        ("accuracy", {"accuracy": 0.5}, None),
        ("hits_top1", {"hits_top1": 0.5}, {"hits": Accuracy(topk=(1, 2))}),
        ("hits_top1", {}, {"hits": Accuracy(topk=(1, 2)), "hits_top1": Accuracy()}),
        ("num_samples", {}, {"num": MultipleResults()}),
    ],
)
def test_two_entries_of_a_record_have_two_names(name: str, variables: Any, metrics: Any) -> None:
    runner = make(metrics=metrics)
    step = runner.model.val_step
    runner.model.val_step = lambda *args: step(*args) | {"log_vars": variables}
    with pytest.raises(UsageError, match=f"'{name}'"):
        runner.run([loader()], [("val", 1)])


@pytest.mark.parametrize("metrics", [None, {"accuracy": Accuracy()}])
def test_every_sample_needs_a_score(metrics: Any) -> None:
    runner = make(metrics=metrics)
    step = runner.model.val_step

    def without_the_last(batch: Any, optimizer: Any) -> Any:
        outputs = step(batch, optimizer)
        return outputs | {"scores": outputs["scores"][:-1], "labels": outputs["labels"][:-1]}

    runner.model.val_step = without_the_last
    with pytest.raises(UsageError, match="3 of 20 samples"):
        runner.run([loader(20)], [("val", 1)])


@pytest.mark.parametrize("metrics", [Accuracy(), {"accuracy": Accuracy}])
def test_metrics_that_are_none_are_refused(metrics: Any) -> None:
    with pytest.raises(UsageError, match="Accuracy"):
        make(metrics=metrics)
