"""Each hook does what it is for, and what can't be configured is refused by name."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError
from disteval.metrics import Accuracy, CrossEntropy

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

import safetensors.torch  # noqa: E402
from disteval.estimator import EpochBasedRunner, IterBasedRunner  # noqa: E402
from disteval.estimator.hooks import (  # noqa: E402
    BestWeightsHook,
    CheckpointHook,
    Hook,
    OptimizerHook,
    TextLoggerHook,
)

from suites.estimator.tiny import Tiny, samples  # noqa: E402

pytestmark = needs("torch")


def make(kind: Any = EpochBasedRunner, lr: float = 1.0, **options: Any) -> Any:
    torch.manual_seed(5)
    model = Tiny()
    return kind(model, optimizer=torch.optim.SGD(model.parameters(), lr=lr), **options)


def loader(size: int = 20, batch_size: int = 8) -> Any:
    return data.DataLoader(samples(size), batch_size)


class Rates(Hook):
    """Writes down the rate of every iteration."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def after_train_iter(self, runner: Any) -> None:
        self.seen.append(runner.current_lr()[0])


def rates(config: dict[str, Any], epochs: int = 4) -> list[float]:
    """The rates of ``epochs`` epochs of 3 iterations, the first rate being 1."""
    runner, seen = make(max_epochs=epochs), Rates()
    runner.register_training_hooks(config, {})
    runner.register_hook(seen, "VERY_LOW")
    runner.run([loader()], [("train", 1)])
    return seen.seen


def by_epoch(*values: float) -> Any:
    return pytest.approx([value for value in values for _ in range(3)])


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"policy": "fixed"}, by_epoch(1, 1, 1, 1)),
        ({"policy": "step", "step": [1, 3]}, by_epoch(1, 0.1, 0.1, 0.01)),
        ({"policy": "step", "step": 2, "gamma": 0.5}, by_epoch(1, 1, 0.5, 0.5)),
        ({"policy": "step", "step": 1, "min_lr": 0.05}, by_epoch(1, 0.1, 0.05, 0.05)),
        ({"policy": "cosine"}, by_epoch(*(cosine(e / 4) for e in range(4)))),
        ({"policy": "CosineAnnealing", "min_lr": 0.5},
         by_epoch(*(0.5 + 0.5 * cosine(e / 4) for e in range(4)))),
        ({"policy": "cosine", "by_epoch": False},
         pytest.approx([cosine(i / 12) for i in range(12)])),
        ({"policy": "fixed", "warmup": "linear", "warmup_iters": 4, "warmup_ratio": 0.2},
         pytest.approx([0.2, 0.4, 0.6, 0.8] + [1] * 8)),
    ],
)  # fmt: skip
def test_a_rate_follows_its_schedule(config: dict[str, Any], expected: Any) -> None:
    assert rates(config) == expected


def test_a_schedule_by_epoch_needs_an_end_in_epochs() -> None:
    runner = make(IterBasedRunner, max_iters=3)
    runner.register_training_hooks({"policy": "cosine", "by_epoch": True}, {})
    with pytest.raises(UsageError, match="max_epochs"):
        runner.run([loader()], [("train", 3)])


def test_gradients_are_clipped_and_their_norm_is_recorded() -> None:
    steps = []
    for clip in (None, {"max_norm": 1e-3}):
        runner = make(max_epochs=1)
        before = runner.model.fc.weight.detach().clone()
        runner.register_training_hooks(None, {"grad_clip": clip})
        [record] = runner.run([loader(8)], [("train", 1)])
        steps.append((runner.model.fc.weight - before).norm().item())
    assert steps[1] <= 1e-3 < steps[0]
    assert record["grad_norm"] > 1e-3


def test_hooks_are_called_by_priority_then_as_registered() -> None:
    called: list[str] = []

    class Named(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_run(self, runner: Any) -> None:
            called.append(self.name)

    runner = make()
    for name, priority in [("a", "LOW"), ("b", 50), ("c", "very_high"), ("d", "NORMAL"), ("e", 0)]:
        runner.register_hook(Named(name), priority)
    runner.run([loader()], [("val", 1)])
    assert called == ["e", "c", "b", "d", "a"]
    for wrong in ("URGENT", 101, -1, True, 1.5):
        with pytest.raises(UsageError, match="priority"):
            runner.register_hook(Named("f"), wrong)


def test_an_mmcv_style_hook_needs_only_another_base() -> None:
    class Mine(Hook):
        def __init__(self) -> None:
            self.epochs: list[int] = []
            self.ends: list[bool] = []
            self.last: list[bool] = []
            self.iters = 0

        def after_epoch(self, runner: Any) -> None:
            if runner.mode == "train" and self.every_n_epochs(runner, 2):
                self.epochs.append(runner.epoch + 1)
            self.last.append(self.is_last_epoch(runner))

        def after_iter(self, runner: Any) -> None:
            if runner.mode != "train":
                return
            self.iters += self.every_n_iters(runner, 2) + self.every_n_inner_iters(runner, 3)
            self.ends.append(self.end_of_epoch(runner))
            runner.log_buffer.update({"seen": len(runner.data_batch[1])}, 1)
            if self.is_last_iter(runner):
                self.ends.append("last")  # type: ignore[arg-type]

    runner, mine = make(max_epochs=4), Mine()
    runner.register_training_hooks(None, {}, custom_hooks_config=[mine])
    records = runner.run([loader(20)], [("train", 1)])
    assert mine.epochs == [2, 4]
    assert mine.ends == [False, False, True] * 4 + ["last"]
    assert mine.last == [False, False, False, True]
    assert mine.iters == 6 + 4
    assert records[0]["seen"] == 20 / 3


WRITING: list[Any] = [
    lambda: CheckpointHook(),
    lambda: BestWeightsHook("accuracy"),
    lambda: TextLoggerHook(),
]


@pytest.mark.parametrize("hook", WRITING)
def test_a_folder_that_can_not_be_written_is_refused_before_training(
    hook: Any, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("a file")
    runner = make(max_epochs=1, work_dir=mine / "run")
    before = runner.model.fc.weight.detach().clone()
    runner.register_hook(OptimizerHook())
    runner.register_hook(hook())
    with pytest.raises(UsageError, match=r"\S+mine/run"):
        runner.run([loader()], [("train", 1)])
    assert runner.model.fc.weight.equal(before)


@pytest.mark.parametrize("hook", WRITING[:2])
def test_a_hook_that_writes_says_so_when_it_has_nowhere_to(hook: Any) -> None:
    runner = make(max_epochs=1)
    runner.register_hook(hook())
    with pytest.raises(UsageError, match="work_dir"):
        runner.run([loader()], [("train", 1)])


def test_each_record_is_a_line_of_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = make(max_epochs=2, work_dir=tmp_path)
    runner.register_training_hooks({"policy": "fixed"}, {}, log_config={"interval": 2})
    runner.model.train_step = lambda batch, optimizer: {
        "loss": runner.model(batch[0]).sum(), "log_vars": {"odd": math.nan}, "num_samples": 8,
    }  # fmt: skip
    with caplog.at_level(logging.INFO):
        records = runner.run([loader(), loader()], [("train", 1), ("val", 1)])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for line, record in zip(lines, records, strict=True):
        assert line.pop("training") == runner.training
        assert line == {k: None if k == "odd" else v for k, v in record.items()}
    said = [record.getMessage() for record in caplog.records]
    steps = [text.partition(" lr:")[0] for text in said if "[" in text]
    assert steps == ["epoch 1 [2/3]", "epoch 2 [2/3]"]


def test_the_sampler_is_told_of_each_epoch() -> None:
    class Sampler(data.RandomSampler):
        epochs: list[int] = []  # noqa: RUF012 - one of each test

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    dataset = samples(8)
    for how in ("sampler", "batch_sampler"):
        sampler = Sampler(dataset)
        Sampler.epochs = []
        batches = data.BatchSampler(sampler, 4, drop_last=False)
        chosen = {"sampler": sampler} if how == "sampler" else {"batch_sampler": batches}
        runner = make(max_epochs=3)
        runner.register_training_hooks(None, {})
        runner.run([data.DataLoader(dataset, **chosen)], [("train", 1)])
        assert Sampler.epochs == [0, 1, 2]


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        ({"lr_config": {"policy": "stepp"}}, "'step'"),
        ({"lr_config": {"step": 1}}, "policy None"),
        ({"lr_config": {"policy": "step"}}, "StepLrHook"),
        ({"lr_config": {"policy": "step", "step": 1, "gama": 1}}, "'gama'"),
        ({"lr_config": {"policy": "fixed", "warmup": "slow"}}, "'slow'"),
        ({"optimizer_config": {"grad_clip": {"norm": 1}}}, "'norm'"),
        ({"optimizer_config": {"grad_clip": {}}}, "'max_norm'"),
        ({"optimizer_config": {"clip": 1}}, "'clip'"),
        ({"checkpoint_config": {"interval": 0}}, "interval"),
        ({"checkpoint_config": {"max_keep_ckpts": 0}}, "not 0"),
        ({"log_config": {"every": 1}}, "'every'"),
        ({"custom_hooks_config": {"type": "TextLogger"}}, "'TextLoggerHook'"),
        ({"custom_hooks_config": [{"interval": 1}]}, "'type'"),
        ({"custom_hooks_config": [{"type": "OptimizerHook", "priority": "SOON"}]}, "'SOON'"),
        ({"log_config": 3}, "not 3"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused_whole(
    configs: dict[str, Any], found: str
) -> None:
    runner = make()
    with pytest.raises(UsageError, match=found):
        runner.register_training_hooks(**{"lr_config": None, **configs})
    assert runner.hooks == []


BOTH = [("train", 1), ("val", 1)]


def test_the_best_weights_are_kept_and_give_what_was_recorded(tmp_path: Path) -> None:
    runner = make(max_epochs=6, lr=3.0, work_dir=tmp_path)
    held_out = samples(50, seed=1)
    runner.register_training_hooks(None, {}, custom_hooks_config=BestWeightsHook("accuracy"))
    runner.run([loader(8), data.DataLoader(held_out, 16)], BOTH)
    found = [r["correct"] for r in runner.records if r["mode"] == "val"]
    assert len(found) == 6 and len(set(found)) > 1
    with safetensors.safe_open(tmp_path / "best.safetensors", "pt") as file:
        told = file.metadata()
    assert int(told["correct"]) == max(found)
    assert int(told["epoch"]) == found.index(max(found)) + 1  # the first of equals
    other = make()
    other.load_checkpoint(tmp_path / "best.safetensors", strict=True)
    [record] = other.run([data.DataLoader(held_out, 16)], [("val", 1)])
    assert record["correct"] == max(found)


def test_other_metrics_and_a_falling_rule(tmp_path: Path) -> None:
    metrics = {"entropy": CrossEntropy(), "hits": Accuracy(topk=(1, 2))}
    runner = make(max_epochs=4, lr=0.1, metrics=metrics, work_dir=tmp_path)
    best = {"type": "BestWeightsHook", "monitor": "entropy"}
    runner.register_training_hooks(None, {}, custom_hooks_config=best)
    runner.run([loader(), loader()], [("train", 2), ("val", 1)])
    first, second = (r for r in runner.records if r["mode"] == "val")
    assert (first["epoch"], second["epoch"]) == (2, 4)
    with safetensors.safe_open(tmp_path / "best.safetensors", "pt") as file:
        assert float(file.metadata()["entropy"]) == min(first["entropy"], second["entropy"])
    assert 0 <= first["hits_top1"] <= first["hits_top2"] <= 1


def test_what_best_means_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'size'"):
        BestWeightsHook("size")
    with pytest.raises(UsageError, match="'incorrect'"):
        BestWeightsHook("incorrect")
    with pytest.raises(UsageError, match="rule='more'"):
        BestWeightsHook("accuracy", rule="more")
    runner = make(max_epochs=1, work_dir=tmp_path)
    runner.register_training_hooks(None, {}, custom_hooks_config=BestWeightsHook("top1"))
    with pytest.raises(UsageError, match=r"'top1'.*epoch"):
        runner.run([loader(), loader()], BOTH)


def test_a_hook_ends_training_after_the_turn_and_the_last_state_is_kept(tmp_path: Path) -> None:
    class Stops(Hook):
        def after_record(self, runner: Any, record: dict[str, Any]) -> None:
            if record["mode"] == "train" and record["epoch"] == 2:
                runner.stop("it is enough")

    runner = make(max_epochs=5, work_dir=tmp_path)
    runner.register_training_hooks(None, {}, {"interval": 9}, custom_hooks_config=Stops())
    records = runner.run([loader(), loader(8)], BOTH)
    assert [r["mode"] for r in records] == ["train", "val"] * 2
    assert [path.name for path in tmp_path.glob("*.pt")] == ["epoch_2.pt"]


def test_a_checkpoint_that_would_lose_gradients_is_refused(tmp_path: Path) -> None:
    runner = make(IterBasedRunner, max_iters=4, work_dir=tmp_path)
    runner.register_training_hooks(None, {"accumulate": 2}, {"interval": 1})
    with pytest.raises(UsageError, match="1 of the 2"):
        runner.run([loader(40)], [("train", 4)])
    runner.hooks = [hook for hook in runner.hooks if not isinstance(hook, CheckpointHook)]
    runner.register_hook(CheckpointHook(2, by_epoch=False), "BELOW_NORMAL")
    runner.run([loader(40)], [("train", 4)])
    resumed = make(IterBasedRunner, max_iters=4)
    resumed.register_training_hooks(None, {"accumulate": 2})
    resumed.resume(tmp_path / "iter_2.pt")
    resumed.run([loader(40)], [("train", 4)])
    assert torch.equal(resumed.model.fc.weight, runner.model.fc.weight)
