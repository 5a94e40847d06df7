"""A runner does what its workflow says, and its records are exact."""

import math
from fractions import Fraction
from typing import Any

import pytest
from disteval import HarnessError, RankError, TrainingError, UsageError
from disteval.metrics import Accuracy, CrossEntropy, Mean
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

torch = framework("torch")
data = torch.utils.data

from disteval.estimator import EpochBasedRunner, IterBasedRunner  # noqa: E402
from disteval.estimator.hooks import Hook  # noqa: E402

from suites.estimator.tiny import Tiny, samples  # noqa: E402

pytestmark = needs("torch")

STAGES = [
    "before_run", "before_train_epoch", "before_train_iter", "after_train_iter",
    "after_train_epoch", "before_val_epoch", "before_val_iter", "after_val_iter",
    "after_val_epoch", "after_run",
]  # fmt: skip


def make(kind: Any = EpochBasedRunner, dropout: float = 0.0, **options: Any) -> Any:
    torch.manual_seed(5)
    model = Tiny(dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    runner = kind(model, optimizer=optimizer, **options)
    runner.register_training_hooks(None, optimizer_config={})
    return runner


def loader(size: int = 20, batch_size: int = 8, **options: Any) -> Any:
    return data.DataLoader(samples(size), batch_size, **options)


class Echo(torch.nn.Module):
    """A model whose batches are the numbers to report, one a sample."""

    def val_step(self, batch: Any, optimizer: Any) -> dict[str, Any]:
        labels = torch.ones(len(batch), dtype=torch.int64)
        return {"log_vars": {"own": batch.mean().item()}, "num_samples": len(batch),
                "scores": torch.eye(2)[(batch > 0).long()], "labels": labels}  # fmt: skip


class Diary(Hook):
    """Writes down which stage was called, at which epoch and iteration."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int]] = []
        for stage in STAGES:
            setattr(self, stage, lambda runner, stage=stage: self._write(runner, stage))

    def _write(self, runner: Any, stage: str) -> None:
        self.lines.append((stage, runner.epoch, runner.iter))


def shape(records: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    return [(r["mode"], r["epoch"], r["iter"], r["num_samples"]) for r in records]


def test_a_workflow_alternates_with_one_record_a_phase() -> None:
    runner, told, progress = make(max_epochs=4), [], []
    runner.on_record = told.append
    runner.on_progress = lambda done, total: progress.append((done, total))
    records = runner.run([loader(20), loader(9)], [("train", 2), ("val", 1)])
    one = [("train", 1, 3, 20), ("train", 2, 6, 20), ("val", 2, 6, 9)]
    two = [("train", 3, 9, 20), ("train", 4, 12, 20), ("val", 4, 12, 9)]
    assert shape(records) == one + two
    assert records == runner.records == told
    assert progress[:8] == [(1, 3), (2, 3), (3, 3), (1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]
    assert all(r["lr"] == 0.1 for r in records if r["mode"] == "train")
    assert [r["evaluated"] for r in records if r["mode"] == "val"] == [9, 9]


def test_the_turn_in_which_training_ends_is_finished() -> None:
    records = make(max_epochs=3).run([loader(), loader(9)], [("train", 2), ("val", 1)])
    assert [r["mode"] for r in records] == ["train", "train", "val", "train", "val"]


def test_a_workflow_of_only_val_ends() -> None:
    runner = make()
    runner.epoch, runner.iter = 3, 30
    records = runner.run([loader(20)], [("val", 2)])
    assert shape(records) == [("val", 3, 30, 20)] * 2
    assert records[0]["correct"] == records[1]["correct"]


def test_run_again_goes_on_to_the_new_total() -> None:
    once, twice = make(max_epochs=5), make(max_epochs=2)
    torch.manual_seed(1)
    whole = once.run([loader(shuffle=True)], [("train", 1)])
    torch.manual_seed(1)
    parts = twice.run([loader(shuffle=True)], [("train", 1)])
    parts += twice.run([loader(shuffle=True)], [("train", 1)], max_epochs=5)
    assert [r["loss"] for r in parts] == [r["loss"] for r in whole]
    assert twice.run([loader()], [("train", 1)]) == []
    assert len(twice.records) == 5


def test_hooks_are_called_at_the_ten_stages_in_order() -> None:
    runner, diary = make(max_epochs=1), Diary()
    runner.register_hook(diary)
    runner.run([loader(9), loader(5)], [("train", 1), ("val", 1)])
    expected = [
        ("before_run", 0, 0), ("before_train_epoch", 0, 0),
        ("before_train_iter", 0, 0), ("after_train_iter", 0, 0),
        ("before_train_iter", 0, 1), ("after_train_iter", 0, 1),
        ("after_train_epoch", 0, 2), ("before_val_epoch", 1, 2),
        ("before_val_iter", 1, 2), ("after_val_iter", 1, 2),
        ("after_val_epoch", 1, 2), ("after_run", 1, 2),
    ]  # fmt: skip
    assert diary.lines == expected


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 5),
)
@settings(max_examples=40)
def test_a_record_is_the_mean_over_samples_at_any_world_size(
    numbers: list[float], world: int, batch_size: int
) -> None:
    validation = data.DataLoader(torch.tensor(numbers, dtype=torch.float64), batch_size)

    def rank(backend: ThreadsDist) -> Any:
        return EpochBasedRunner(Echo(), backend=backend).run([validation], [("val", 1)])[0]

    records = values(run_ranks(world, rank))
    total = sum(Fraction(batch.mean().item()) * len(batch) for batch in validation)
    right = sum(number > 0 for number in numbers)
    for record in records:
        assert record == records[0]
        assert record["own"] == float(total / len(numbers))
        assert (record["correct"], record["evaluated"]) == (right, len(numbers))
        assert record["accuracy"] == right / len(numbers)
        assert record["num_samples"] == len(numbers)


def test_validation_changes_nothing_of_training() -> None:
    plain, validated = make(max_epochs=3, dropout=0.5), make(max_epochs=3, dropout=0.5)
    torch.manual_seed(2)
    plain.run([loader(shuffle=True)], [("train", 1)])
    torch.manual_seed(2)
    validated.run([loader(shuffle=True), loader(shuffle=True)], [("train", 1), ("val", 2)])
    for one, other in zip(
        plain.model.state_dict().values(), validated.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert validated.model.dropout.training


def test_an_iteration_is_the_unit_of_an_iter_based_workflow() -> None:
    runner, diary = make(IterBasedRunner, max_iters=7), Diary()
    runner.register_hook(diary)
    records = runner.run([loader(20), loader(40)], [("train", 5), ("val", 2)])
    assert runner.run([loader(20)], [("val", 50)])[0]["evaluated"] == 20
    assert shape(records) == [
        ("train", 1, 5, 36), ("val", 1, 5, 16), ("train", 2, 7, 12), ("val", 2, 7, 16),
    ]  # fmt: skip
    passes = [line for line in diary.lines if line[0].endswith("train_epoch")]
    expected = [
        ("before_train_epoch", 0, 0), ("after_train_epoch", 0, 3),
        ("before_train_epoch", 1, 3), ("after_train_epoch", 1, 6),
        ("before_train_epoch", 2, 6),
    ]  # fmt: skip
    assert passes == expected


def test_an_iter_based_run_ends_after_epochs_too() -> None:
    runner = make(IterBasedRunner)
    assert shape(runner.run([loader(20)], [("train", 4)], max_epochs=2))[-1][1:3] == (2, 6)


def test_the_record_of_a_phase_comes_before_what_hooks_do_at_the_end_of_its_epoch() -> None:
    class Counts(Hook):
        def after_train_epoch(self, runner: Any) -> None:
            seen.append(len(runner.records))

    runner, seen = make(IterBasedRunner, max_iters=6), []
    runner.register_hook(Counts())
    runner.run([loader(20)], [("train", 3)])
    assert seen == [1, 2]


def test_a_hook_can_end_training_early_and_validation_reports_progress() -> None:
    class Stop(Hook):
        def after_train_iter(self, runner: Any) -> None:
            runner.max_iters = 2

    runner, progress = make(IterBasedRunner, max_iters=9), []
    runner.register_hook(Stop())
    runner.on_progress = lambda done, total: progress.append((done, total))
    records = runner.run([loader(40), loader(20)], [("train", 4), ("val", 9)])
    assert [(r["mode"], r["iter"]) for r in records] == [("train", 2), ("val", 2)]
    # A long validation must not look like a rank that hangs.
    assert progress == [(1, 4), (2, 4), (1, 3), (2, 3), (3, 3)]


class WrongLength(data.DataLoader):
    def __len__(self) -> int:
        return self.told


@pytest.mark.parametrize("told", [2, 4])
def test_a_loader_whose_length_is_wrong_is_refused(told: int) -> None:
    wrong = WrongLength(samples(20), 8)
    wrong.told = told
    with pytest.raises(UsageError, match=f"length {told}"):
        make(max_epochs=1).run([wrong], [("train", 1)])


@pytest.mark.parametrize(
    ("workflow", "options", "told"),
    [
        ([("train", 1), ("val", 1)], {}, "2 .*, not 1"),
        ([("test", 1)], {}, "'test'"),
        ([("train", 0)], {}, "'train' .* 0"),
        ([], {}, "workflow"),
        ([("train", 1)], {}, "max_epochs"),
        ([("train", 1)] * 2, {"loaders": [loader(), loader()], "max_epochs": 1}, "one loader"),
        ([("train", 1)], {"loader": [], "max_epochs": 1}, "0, 'train'"),
        ([("val", 1)], {"loader": [1]}, "DataLoader"),
        ([("val", 1)], {"loader": data.DataLoader(samples(0))}, "empty"),
        ([("train", 1)], {"loader": iter([1])}, "length"),
        ([("train", 1)], {"max_epochs": 0}, "max_epochs .* 0"),
        ([("val", 1)], {"model": torch.nn.Linear(1, 1)}, "Linear .*val_step"),
    ],
)
def test_what_can_not_work_is_refused_before_anything_begins(
    workflow: Any, options: dict[str, Any], told: str
) -> None:
    runner, diary = make(), Diary()
    runner.model = options.get("model", runner.model)
    runner.register_hook(diary)
    with pytest.raises(UsageError, match=told):
        loaders = options.get("loaders", [options.get("loader", loader())])
        runner.run(loaders, workflow, options.get("max_epochs"))
    assert diary.lines == []


def test_a_count_of_iterations_does_not_end_epochs() -> None:
    with pytest.raises(UsageError, match="IterBased"):
        make(max_iters=3)
    with pytest.raises(UsageError, match="max_iters"):
        make(IterBasedRunner, max_iters=3, max_epochs=3)


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (None, "NoneType"),
        ({"log_vars": {}, "num_samples": 1}, "'loss'"),
        ({"loss": torch.ones(()), "num_samples": 1}, "'log_vars'"),
        ({"loss": torch.ones(()), "log_vars": {}}, "'num_samples'"),
        ({"loss": 1.0, "log_vars": {}, "num_samples": 1}, "loss .* 1.0"),
        ({"loss": torch.ones(()), "log_vars": {"a": [1, 2]}, "num_samples": 1}, "'a'"),
        ({"loss": torch.ones(()), "log_vars": {}, "num_samples": 1.5}, "num_samples .*1.5"),
    ],
)
def test_a_step_that_returns_less_than_needed_is_told_what_is_missing(
    outputs: Any, told: str
) -> None:
    runner = make(max_epochs=1)
    runner.model.train_step = lambda batch, optimizer: outputs
    with pytest.raises(UsageError, match=told):
        runner.run([loader()], [("train", 1)])


@pytest.mark.parametrize("kind", [EpochBasedRunner, IterBasedRunner])
def test_training_that_never_steps_is_an_error(kind: Any) -> None:
    runner, train = make(kind), loader()
    runner.hooks = []
    with pytest.raises(UsageError, match="Tiny"):
        runner.run([train], [("train", 1)], max_epochs=3)
    assert runner.epoch == 0


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_the_model_itself_counts(fused: bool) -> None:
    runner = make(max_epochs=1)
    runner.optimizer = torch.optim.SGD(runner.model.parameters(), lr=0.1, fused=fused)
    runner.hooks, step = [], runner.model.train_step

    def train_step(batch: Any, optimizer: Any) -> Any:
        outputs = step(batch, optimizer)
        outputs["loss"].backward()
        optimizer.step()
        return outputs

    runner.model.train_step = train_step
    assert len(runner.run([loader()], [("train", 1)])) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_with_its_iteration(value: float) -> None:
    def spoil(runner: Any) -> Any:
        step = runner.model.train_step

        def spoiled(batch: Any, optimizer: Any) -> Any:
            outputs = step(batch, optimizer)
            return outputs | {"loss": outputs["loss"] * (value if runner.iter == 4 else 1)}

        runner.model.train_step = spoiled
        return runner

    runner = spoil(make(max_epochs=3))
    with pytest.raises(TrainingError, match=rf"rank 0.*{value}.* 5"):
        runner.run([loader()], [("train", 1)])
    assert all(p.isfinite().all() for p in runner.model.parameters())
    records = spoil(make(max_epochs=3, stop_on_nan=False)).run([loader()], [("train", 1)])
    assert len(records) == 3


def test_training_steps_run_in_mixed_precision_and_validation_does_not() -> None:
    seen: dict[bool, Any] = {}
    runner = make(max_epochs=1, autocast="bfloat16")
    runner.model.fc.register_forward_hook(
        lambda layer, inputs, output: seen.update({layer.training: output.dtype})
    )
    train, val = runner.run([loader(), loader()], [("train", 1), ("val", 1)])
    assert seen == {True: torch.bfloat16, False: torch.float32}
    assert train["loss"] > 0 and val["loss"] > 0
    with pytest.raises(UsageError, match="'float8'"):
        make(autocast="float8")


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
    records = runner.run([targets(), targets()], [("train", 1), ("val", 2)])
    found = [record["distance"] for record in records if record["mode"] == "val"]
    x, y = targets().dataset.tensors
    expected = (runner.model.fc(x)[:, 0] - y).abs().mean().item()
    assert found == [found[0]] * 2 == pytest.approx([expected] * 2)
    assert records[-1]["evaluated"] == 20


@pytest.mark.parametrize("scored", [lambda x: False, lambda x: len(x) == 8], ids=["no", "some"])
def test_metrics_that_can_not_be_computed_are_an_error(scored: Any) -> None:
    runner = regress(scored, metrics={"distance": MeanDistance()})
    with pytest.raises(RankError, match="Regression"):
        runner.run([targets()], [("val", 1)])


def cut(outputs: Any) -> Any:
    return {"scores": outputs["scores"][:-1], "labels": outputs["labels"][:-1]}


def named(name: str) -> Any:
    return lambda outputs: {"log_vars": {name: 0.5}}


HITS = {"hits": Accuracy(topk=(1, 2))}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "scores without labels": (lambda outputs: {"labels": None}, None, "only one"),
    "scores of another shape": (lambda o: {"scores": o["scores"].squeeze()}, None, "1 .*3 rows"),
    "no scores of classes": (
        lambda o: {"scores": o["scores"][:, 0]} if len(o["labels"]) == 1 else {},
        None,
        "1 .*Tiny",
    ),
    "no score of some samples": (cut, None, "8 samples .* 7 rows"),
    "another number of samples": (lambda o: {"num_samples": 9}, None, "num_samples=9 .* 8 sam"),
    "the name of an entry": (named("epoch"), None, "'epoch'"),
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
    with pytest.raises(HarnessError, match=told):
        runner.run([loader(17)], [("val", 1)])


@pytest.mark.parametrize(
    "metrics", [Accuracy(), {"accuracy": Accuracy}, {"epoch": Accuracy()}, {"mode": Accuracy()}]
)
def test_metrics_that_are_none_or_have_the_name_of_an_entry_are_refused(metrics: Any) -> None:
    with pytest.raises(UsageError, match=r"Accuracy|'epoch'|'mode'"):
        make(metrics=metrics)
