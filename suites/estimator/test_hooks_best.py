"""Hooks keep the last and the best checkpoints, and end training that gets no better."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
from disteval.estimator import IterBasedRunner  # noqa: E402
from disteval.estimator.hooks import CheckpointHook, EvalHook  # noqa: E402
from disteval.metrics import Accuracy, CrossEntropy  # noqa: E402

from suites.estimator.test_hooks import loader, make  # noqa: E402
from suites.estimator.tiny import samples  # noqa: E402

pytestmark = needs("torch")


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
    with pytest.raises(UsageError, match="filename_tmpl"):
        runner.register_training_hooks(None, checkpoint_config={"filename_tmpl": template})
    with pytest.raises(UsageError, match="filename_tmpl"):
        runner.save_checkpoint(tmp_path, template)
    assert [*tmp_path.iterdir()] == []


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
    with pytest.raises(UsageError, match="'size'"):
        EvalHook(loader(), save_best="size")
    with pytest.raises(UsageError, match="'incorrect'"):
        EvalHook(loader(), save_best="incorrect")
    with pytest.raises(UsageError, match="rule='more'"):
        EvalHook(loader(), save_best="accuracy", rule="more")
    runner = make(max_epochs=1, work_dir=tmp_path)
    runner.register_training_hooks(
        None, {}, custom_hooks_config=[EvalHook(loader(), save_best="top1")]
    )
    with pytest.raises(UsageError, match=r"'top1'.*epoch"):
        runner.run([loader()], [("train", 1)])


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
    assert re.search(r"epoch 4: loss .* 4\.0 in 2\b", caplog.text), caplog.text
    resumed = start()
    resumed.resume(tmp_path / "latest.pt")
    assert resumed.epoch == 4
    assert [r["mode"] for r in run(resumed)] == []


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
