"""Each hook does what it is for, and what can't be configured is refused by name."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from disteval import LibraryMissingError, UsageError

from suites.requirements import framework

torch = framework("torch")
data = torch.utils.data

import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
from disteval.estimator import EpochBasedRunner, IterBasedRunner  # noqa: E402
from disteval.estimator import hooks as hooks_module  # noqa: E402
from disteval.estimator.hooks import (  # noqa: E402
    CheckpointHook,
    EvalHook,
    Hook,
    OptimizerHook,
    TensorboardLoggerHook,
    TextLoggerHook,
)
from disteval.metrics import Accuracy, CrossEntropy  # noqa: E402

from suites.frameworks.estimator.tiny import Tiny, samples  # noqa: E402


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
        ({"policy": "CosineAnnealing", "min_lr_ratio": 0.5},
         by_epoch(*(0.5 + 0.5 * cosine(e / 4) for e in range(4)))),
        ({"policy": "cosine", "by_epoch": False},
         pytest.approx([cosine(i / 12) for i in range(12)])),
        ({"policy": "poly", "power": 2}, by_epoch(1, 0.75**2, 0.5**2, 0.25**2)),
        ({"policy": "fixed", "warmup": "constant", "warmup_iters": 2, "warmup_ratio": 0.3},
         pytest.approx([0.3, 0.3] + [1] * 10)),
        ({"policy": "fixed", "warmup": "linear", "warmup_iters": 4, "warmup_ratio": 0.2},
         pytest.approx([0.2, 0.4, 0.6, 0.8] + [1] * 8)),
        ({"policy": "fixed", "warmup": "exp", "warmup_iters": 2, "warmup_ratio": 0.25},
         pytest.approx([0.25, 0.5] + [1] * 10)),
        ({"policy": "fixed", "warmup": "linear", "warmup_iters": 2, "warmup_ratio": 0.5,
          "warmup_by_epoch": True}, by_epoch(0.5, 0.75, 1, 1)),
        ({"policy": "step", "step": 2, "warmup": "constant", "warmup_iters": 1},
         pytest.approx([0.1] + [1] * 5 + [0.1] * 6)),
    ],
)  # fmt: skip
def test_a_rate_follows_its_schedule(config: dict[str, Any], expected: Any) -> None:
    assert rates(config) == expected


def test_a_schedule_goes_on_in_the_next_run() -> None:
    runner, seen = make(max_epochs=2), Rates()
    runner.register_training_hooks({"policy": "step", "step": [1, 2]}, {})
    runner.register_hook(seen, "VERY_LOW")
    runner.run([loader()], [("train", 1)])
    runner.run([loader()], [("train", 1)], max_epochs=3)
    assert seen.seen == by_epoch(1, 0.1, 0.01)


def test_a_schedule_by_epoch_needs_an_end_in_epochs() -> None:
    runner = make(IterBasedRunner, max_iters=3)
    runner.register_training_hooks({"policy": "cosine", "by_epoch": True}, {})
    with pytest.raises(UsageError, match="CosineLrHook by epochs needs the runner's max_epochs"):
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


def test_parameters_without_a_gradient_are_named(caplog: pytest.LogCaptureFixture) -> None:
    runner = make(max_epochs=1)
    runner.model.spare = torch.nn.Linear(2, 2)
    runner.register_hook(OptimizerHook(detect_anomalous_params=True))
    with caplog.at_level(logging.WARNING):
        runner.run([loader()], [("train", 1)])
    assert [r.getMessage() for r in caplog.records] == [
        "no gradient came to spare.weight, spare.bias: the loss does not depend on them"
    ]


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
        with pytest.raises(UsageError, match=r"priority .* is not known"):
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


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.pt").write_bytes(b"not a checkpoint")
    runner = make(max_epochs=7, work_dir=tmp_path)
    runner.register_training_hooks(None, {}, {"interval": 2, "max_keep_ckpts": 2})
    runner.run([loader()], [("train", 1)])
    names = sorted(path.name for path in tmp_path.glob("[!.]*"))
    assert names == ["epoch_6.pt", "epoch_7.pt", "latest.pt", "mine.pt"]  # 7 is the last
    assert (tmp_path / "latest.pt").resolve().name == "epoch_7.pt"
    assert torch.load(tmp_path / "latest.pt", weights_only=True)["epoch"] == 7


def test_the_checkpoints_of_another_training_neither_count_nor_go(tmp_path: Path) -> None:
    for epochs in (9, 2):
        runner = make(max_epochs=epochs, work_dir=tmp_path)
        runner.register_training_hooks(None, {}, {"max_keep_ckpts": 2})
        runner.run([loader()], [("train", 1)])
    kept = [f"epoch_{epoch}.pt" for epoch in (1, 2, 8, 9)]
    assert sorted(path.name for path in tmp_path.glob("epoch_*")) == kept


def test_checkpoints_by_iteration(tmp_path: Path) -> None:
    runner = make(IterBasedRunner, max_iters=8)
    runner.register_training_hooks(None, {}, {"interval": 3, "out_dir": str(tmp_path)})
    runner.run([loader()], [("train", 8)])
    names = {path.name for path in tmp_path.glob("[!.]*")}
    assert names == {"iter_3.pt", "iter_6.pt", "iter_8.pt", "latest.pt"}


@pytest.mark.parametrize(
    "template",
    [
        "latest.pt",
        "{epoch}.pt",
        "{}_{}.pt",
        "{:04d}.pt",
        "../{}.pt",
        ".{}.pt",
        "{}.safetensors",
        "",
        5,
    ],
)
def test_a_name_under_which_no_checkpoint_is_found_again_is_refused(
    template: Any, tmp_path: Path
) -> None:
    runner = make()
    with pytest.raises(UsageError, match=r"filename_tmpl .* can't be used; give a file name"):
        runner.register_training_hooks(None, checkpoint_config={"filename_tmpl": template})
    with pytest.raises(UsageError, match=r"filename_tmpl .* can't be used; give a file name"):
        runner.save_checkpoint(tmp_path, template)
    assert [*tmp_path.iterdir()] == []


def test_a_hook_that_writes_says_so_when_it_has_nowhere_to() -> None:
    for hook in (CheckpointHook(), EvalHook(loader(), save_best="accuracy")):
        runner = make(max_epochs=1)
        runner.register_hook(hook)
        with pytest.raises(UsageError, match="give out_dir, or a work_dir"):
            runner.run([loader()], [("train", 1)])


def test_a_folder_that_can_not_be_written_is_refused_before_training(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("a file")
    for hook in (CheckpointHook(), EvalHook(loader(), save_best="accuracy"), TextLoggerHook()):
        runner = make(max_epochs=1, work_dir=mine / "run")
        before = runner.model.fc.weight.detach().clone()
        runner.register_hook(OptimizerHook())
        runner.register_hook(hook)
        with pytest.raises(UsageError, match=r"_dir \S+mine/run can't be written: Not a directory"):
            runner.run([loader()], [("train", 1)])
        assert runner.model.fc.weight.equal(before)


def test_a_folder_for_tensorboard_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    framework("tensorboard")
    (tmp_path / "mine").write_text("a file")
    runner = make(max_epochs=1)
    runner.register_hook(TensorboardLoggerHook(tmp_path / "mine"))
    with pytest.raises(UsageError, match=r"log_dir \S+mine can't be written: Not a directory"):
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
    steps = [text.partition(" lr:")[0] for text in said if "data_time" in text]
    assert steps == ["epoch 1 [2/3]", "epoch 2 [2/3]"]
    assert "time" not in records[0]


def test_log_lines_average_the_last_iterations_alone() -> None:
    seen: list[dict[str, float]] = []

    class Look(hooks_module.LoggerHook):
        def log_iter(self, runner: Any, averages: dict[str, float]) -> None:
            seen.append(dict(averages))

    runner = make(max_epochs=1)
    values = iter([1.0, 3.0, 5.0, 9.0])
    runner.model.train_step = lambda batch, optimizer: {
        "loss": runner.model(batch[0]).sum(), "log_vars": {"x": next(values)},
        "num_samples": len(batch[1]),
    }  # fmt: skip
    runner.register_training_hooks(None, {}, log_config=Look(2), timer_config=None)
    [record] = runner.run([loader(28)], [("train", 1)])
    assert [line["x"] for line in seen] == [2.0, (5 * 8 + 9 * 4) / 12]
    assert record["x"] == (1 * 8 + 3 * 8 + 5 * 8 + 9 * 4) / 28


def test_tensorboard_that_is_missing_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(LibraryMissingError, match="pip install tensorboard"):
        TensorboardLoggerHook()


def test_tensorboard_gets_the_records(tmp_path: Path) -> None:
    accumulator = framework("tensorboard.backend.event_processing.event_accumulator")
    runner = make(max_epochs=1, work_dir=tmp_path)
    runner.register_training_hooks(
        None, {}, log_config={"interval": 1, "hooks": [{"type": "TensorboardLoggerHook"}]}
    )
    runner.run([loader(), loader()], [("train", 1), ("val", 1)])
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("iter/loss")] == [1, 2, 3]
    [accuracy] = events.Scalars("val/accuracy")
    assert accuracy.value == pytest.approx(runner.records[-1]["accuracy"])


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


def test_the_best_weights_are_kept_and_give_what_was_recorded(tmp_path: Path) -> None:
    runner = make(max_epochs=6, lr=3.0, work_dir=tmp_path)
    held_out = samples(50, seed=1)
    hook = EvalHook(data.DataLoader(held_out, 16), save_best="accuracy")
    runner.register_training_hooks(None, {}, custom_hooks_config=[hook])
    runner.run([loader(8)], [("train", 1)])
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
    hook = EvalHook(loader(), interval=2, metrics=metrics, save_best="entropy", out_dir=tmp_path)
    runner = make(max_epochs=4, lr=0.1)
    runner.register_training_hooks(None, {}, custom_hooks_config=[hook])
    runner.run([loader()], [("train", 1)])
    first, second = (r for r in runner.records if r["mode"] == "val")
    assert (first["epoch"], second["epoch"]) == (2, 4)
    assert hook.best == min(first["entropy"], second["entropy"])
    assert 0 <= first["hits_top1"] <= first["hits_top2"] <= 1


def test_what_best_means_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="save_best='size': give 'greater' or 'less'"):
        EvalHook(loader(), save_best="size")
    with pytest.raises(UsageError, match="save_best='incorrect': give 'greater' or 'less'"):
        EvalHook(loader(), save_best="incorrect")
    with pytest.raises(UsageError, match="rule='more'"):
        EvalHook(loader(), save_best="accuracy", rule="more")
    runner = make(max_epochs=1, work_dir=tmp_path)
    runner.register_training_hooks(
        None, {}, custom_hooks_config=[EvalHook(loader(), save_best="top1")]
    )
    with pytest.raises(UsageError, match="save_best='top1' is not in the record of epoch, iter"):
        runner.run([loader()], [("train", 1)])


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"lr_config": {"policy": "stepp"}}, "policy 'stepp' is not known. Did you mean 'step'?"),
        ({"lr_config": {"step": 1}}, "policy None is not known"),
        ({"lr_config": {"policy": "step"}}, "StepLrHook can't be made of"),
        ({"lr_config": {"policy": "step", "step": 1, "gama": 1}},
         "StepLrHook does not know 'gama'; it knows step, gamma, min_lr, by_epoch, warmup"),
        ({"lr_config": {"policy": "fixed", "warmup": "slow"}}, "warmup 'slow' is not known"),
        ({"optimizer_config": {"grad_clip": {"norm": 1}}}, "grad_clip does not know 'norm'"),
        ({"optimizer_config": {"grad_clip": {}}}, "grad_clip lacks 'max_norm'"),
        ({"optimizer_config": {"clip": 1}}, "OptimizerHook does not know 'clip'; it knows grad_cl"),
        ({"checkpoint_config": {"interval": 0}}, "interval must be a whole number from 1 up"),
        ({"checkpoint_config": {"max_keep_ckpts": 0}}, "or -1 for all, not 0"),
        ({"log_config": {"every": 1}}, "log_config knows interval and hooks"),
        ({"log_config": {"hooks": [{"type": "TextLogger"}]}},
         "hook type 'TextLogger' is not known. Did you mean 'TextLoggerHook'?"),
        ({"custom_hooks_config": [{"interval": 1}]}, "needs a 'type'"),
        ({"custom_hooks_config": [{"type": "IterTimerHook", "priority": "SOON"}]}, "'SOON'"),
        ({"timer_config": 3}, "a hook is given as a dict or a Hook, not 3"),
        ({"momentum_config": {"policy": "step"}}, "momentum_config must be a Hook or None"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_not_known_is_refused_whole(
    configs: dict[str, Any], message: str
) -> None:
    runner = make()
    with pytest.raises(UsageError) as caught:
        runner.register_training_hooks(**{"lr_config": None, **configs})
    assert message in str(caught.value)
    assert runner.hooks == []


def test_a_custom_hook_may_be_given_as_a_class() -> None:
    class Mine(Hook):
        def __init__(self, size: int) -> None:
            self.size = size

    runner = make()
    runner.register_training_hooks(
        None, custom_hooks_config={"type": Mine, "size": 3, "priority": "HIGHEST"}
    )
    assert isinstance(runner.hooks[0], Mine)
    assert runner.hooks[0].size == 3


class Losses:
    """Steps that learn as usual, and report what they are told to as the loss of validation."""

    def __init__(self, *losses: float) -> None:
        self._losses = iter(losses)

    def __call__(self, model: Any, batch: Any, train_mode: bool) -> Any:
        if train_mode:
            return model.train_step(batch, None)
        return {"log_vars": {"loss": next(self._losses)}, "num_samples": len(batch[1])}


def judged(*losses: float, **options: Any) -> Any:
    return make(max_epochs=len(losses), batch_processor=Losses(*losses), **options)


BOTH = [("train", 1), ("val", 1)]


@pytest.mark.parametrize("by_hook", [False, True])
def test_training_ends_when_validation_gets_no_better(
    by_hook: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start() -> Any:
        runner = judged(5, 4, 4, 6, 3, 2, work_dir=tmp_path)
        stopping = {"type": "EarlyStoppingHook", "monitor": "loss", "patience": 2}
        hooks = [EvalHook(loader(8))] if by_hook else []
        runner.register_training_hooks(
            None, {}, {"interval": 9}, custom_hooks_config=[*hooks, stopping]
        )
        return runner

    def run(runner: Any) -> Any:
        if by_hook:
            return runner.run([loader()], [("train", 1)])
        return runner.run([loader(), loader(8)], BOTH)

    records = run(start())
    assert [r["loss"] for r in records if r["mode"] == "val"] == [5, 4, 4, 6]
    assert "training ends at epoch 4: loss was not better than 4.0 in 2 validations" in caplog.text
    resumed = start()
    resumed.resume(tmp_path / "latest.pt")
    assert resumed.epoch == 4
    assert [r["mode"] for r in run(resumed)] == []


def test_what_decides_must_be_in_a_record(tmp_path: Path) -> None:
    for hook in (
        {"type": "EarlyStoppingHook", "monitor": "accuracy"},
        {"type": "CheckpointHook", "monitor": "accuracy", "keep_best": 1},
    ):
        with pytest.raises(UsageError, match="monitor='accuracy' is not in the record of epoch"):
            runner = judged(1, work_dir=tmp_path)
            runner.register_training_hooks(None, {}, custom_hooks_config=hook)
            runner.run([loader(), loader(8)], BOTH)
        with pytest.raises(UsageError, match="without a validation, which monitor='accuracy'"):
            runner = make(max_epochs=1, work_dir=tmp_path)
            runner.register_training_hooks(None, {}, custom_hooks_config=hook)
            runner.run([loader()], [("train", 1)])


def test_the_best_checkpoints_are_kept_beside_the_last(tmp_path: Path) -> None:
    config = {"max_keep_ckpts": 2, "keep_best": 2, "monitor": "loss"}
    names = []
    for losses in ((5, 2, 4, 6), (6, 3, 7, 8)):  # the fourth validation comes after its checkpoint
        runner = judged(*losses, work_dir=tmp_path)
        runner.register_training_hooks(None, {}, config)
        if names:
            runner.resume(tmp_path / "latest.pt")
            runner.max_epochs = 7
        runner.run([loader(), loader(8)], BOTH)
        names.append(sorted(path.stem for path in tmp_path.glob("epoch_*")))
    assert names == [
        ["epoch_2", "epoch_3", "epoch_4"],
        ["epoch_2", "epoch_5", "epoch_6", "epoch_7"],
    ]


class Interrupt(Hook):
    def before_val_epoch(self, runner: Any) -> None:
        raise KeyboardInterrupt


def test_a_best_checkpoint_is_kept_if_its_validation_came_after_a_resume(tmp_path: Path) -> None:
    config = {"max_keep_ckpts": 1, "keep_best": 1, "monitor": "loss"}
    runner = judged(0, work_dir=tmp_path)
    runner.register_training_hooks(None, {}, config, custom_hooks_config=Interrupt())
    with pytest.raises(KeyboardInterrupt):
        runner.run([loader(), loader(8)], BOTH)
    runner = judged(1, 5, 6, work_dir=tmp_path)
    runner.register_training_hooks(None, {}, config)
    runner.resume(tmp_path / "latest.pt")
    runner.run([loader(), loader(8)], BOTH)
    assert {path.stem for path in tmp_path.glob("epoch_*")} == {"epoch_1", "epoch_3"}


def test_accumulated_gradients_are_those_of_one_large_batch() -> None:
    ends = []
    for batch_size, accumulate in ((8, 1), (4, 2), (2, 4), (2, 100)):
        runner, steps = make(max_epochs=3, lr=0.1), []
        runner.optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(0))
        runner.register_training_hooks(None, {"accumulate": accumulate})
        runner.run([loader(24, batch_size)], [("train", 1)])
        ends.append(runner.model.fc.weight.detach().clone())
        assert len(steps) == (9 if accumulate < 100 else 3)  # the last group of a pass is smaller
    for end in ends[1:3]:
        assert torch.allclose(end, ends[0], atol=1e-6)
    assert not torch.allclose(ends[3], ends[0], atol=1e-6)


def test_a_checkpoint_that_would_lose_gradients_is_refused(tmp_path: Path) -> None:
    runner = make(IterBasedRunner, max_iters=4, work_dir=tmp_path)
    runner.register_training_hooks(None, {"accumulate": 2}, {"interval": 1})
    with pytest.raises(UsageError, match="after 1 of the 2 batches of a step would lose"):
        runner.run([loader(40)], [("train", 4)])
    runner.hooks = [hook for hook in runner.hooks if not isinstance(hook, CheckpointHook)]
    runner.register_hook(CheckpointHook(2, by_epoch=False), "BELOW_NORMAL")
    runner.run([loader(40)], [("train", 4)])
    resumed = make(IterBasedRunner, max_iters=4)
    resumed.register_training_hooks(None, {"accumulate": 2})
    resumed.resume(tmp_path / "iter_2.pt")
    resumed.run([loader(40)], [("train", 4)])
    assert torch.equal(resumed.model.fc.weight, runner.model.fc.weight)


def test_log_lines_are_visible_without_any_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner = make(max_epochs=1, logger=logging.Logger("without a handler"))
    runner.register_training_hooks(None, {}, log_config={"interval": 2})
    runner.run([loader(40)], [("train", 1)])
    *steps, record = capsys.readouterr().out.splitlines()
    assert [line.partition(" lr:")[0] for line in steps] == ["epoch 1 [2/5]", "epoch 1 [4/5]"]
    assert "samples_per_second: " in record
