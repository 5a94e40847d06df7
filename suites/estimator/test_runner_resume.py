"""Training that was resumed is training that was not interrupted, to the bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import UsageError, WeightsError

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

from disteval.estimator import (  # noqa: E402
    EpochBasedRunner,
    IterBasedRunner,
    latest_checkpoint,
    read_checkpoint,
)
from disteval.estimator.hooks import CheckpointHook, Hook  # noqa: E402

from suites.estimator.tiny import Noise, Tiny, assert_same, facts, samples  # noqa: E402

pytestmark = needs("torch")

WORKFLOWS = {
    EpochBasedRunner: [("train", 2), ("val", 1)],
    IterBasedRunner: [("train", 5), ("val", 2)],
}
BATCHES = 4
INTERRUPTED = (1, 4, 5, 8, 10, 14)
"""In the first pass, after a pass, a phase, a turn, in the middle of all, near the end."""


def make(kind: Any, folder: Path, policy: str = "cosine") -> Any:
    model = Tiny(dropout=0.4, norm=True)
    runner = kind(model, work_dir=folder, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    if kind is EpochBasedRunner:
        runner.max_epochs = 4
    else:
        runner.max_iters = 4 * BATCHES
    runner.register_training_hooks(
        {"policy": policy, "by_epoch": False, "warmup": "linear", "warmup_iters": 3},
        optimizer_config={"grad_clip": {"max_norm": 1.0}},
        custom_hooks_config=Noise(),
    )
    return runner


def loaders(sampled: bool, seed: int = 8) -> list[Any]:
    dataset = samples(30)
    sampler = data.DistributedSampler(dataset, 1, 0, seed=seed) if sampled else None
    training = data.DataLoader(dataset, 8, sampler=sampler, shuffle=not sampled)
    return [training, data.DataLoader(samples(9), 4)]


def scramble() -> None:
    random.seed(99)
    np.random.seed(98)
    torch.manual_seed(97)


def without_counter(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "hooks"}


@pytest.mark.parametrize("sampled", [False, True], ids=["torch-shuffles", "DistributedSampler"])
@pytest.mark.parametrize("kind", [EpochBasedRunner, IterBasedRunner])
def test_resumed_at_any_iteration_equals_not_interrupted(
    kind: Any, sampled: bool, tmp_path: Path
) -> None:
    scramble()
    whole = make(kind, tmp_path)
    whole.register_hook(CheckpointHook(1, by_epoch=False), "BELOW_NORMAL")
    whole.run(loaders(sampled), WORKFLOWS[kind])
    end = whole.state_dict()
    assert len([*tmp_path.glob("iter_*.pt")]) == 4 * BATCHES
    for path in (tmp_path / f"iter_{at}.pt" for at in INTERRUPTED):
        torch.manual_seed(int(path.stem.removeprefix("iter_")))  # resuming must not depend on it
        resumed = make(kind, tmp_path)
        resumed.resume(path)
        torch.rand(3)  # nor on what is drawn before the run
        resumed.run(loaders(sampled, seed=1), WORKFLOWS[kind])  # nor on a sampler's own seed
        assert_same(without_counter(resumed.state_dict()), without_counter(end), path.name)
        # All that are made after that iteration, also that of the phase that it belongs to.
        at = int(path.stem.removeprefix("iter_"))
        assert facts(resumed.records) == [r for r in facts(whole.records) if r["iter"] >= at]


class Saves(Hook):
    def after_val_epoch(self, runner: Any) -> None:
        done = runner.epoch if runner.by_epoch else runner.iter
        runner.save_checkpoint(runner.work_dir, f"val_{done}.pt")


@pytest.mark.parametrize("kind", [EpochBasedRunner, IterBasedRunner])
def test_a_validation_that_was_interrupted_is_made_again(kind: Any, tmp_path: Path) -> None:
    whole = make(kind, tmp_path)
    whole.register_hook(Saves())
    whole.run(loaders(False), WORKFLOWS[kind])
    resumed = make(kind, tmp_path)
    resumed.resume(tmp_path / ("val_2.pt" if kind is EpochBasedRunner else "val_5.pt"))
    resumed.run(loaders(False), WORKFLOWS[kind])
    told, expected = facts(resumed.records), facts(whole.records)
    assert told == expected[len(expected) - len(told) :] and told[0]["mode"] == "val"


def test_a_state_does_not_change_with_further_training(tmp_path: Path) -> None:
    runner = make(EpochBasedRunner, tmp_path)
    runner.max_epochs = 1
    runner.run(loaders(False)[:1], [("train", 1)])
    state = runner.state_dict()
    path = runner.save_checkpoint(tmp_path)
    runner.run(loaders(False)[:1], [("train", 1)], max_epochs=3)
    kept = read_checkpoint(path)
    assert kept.pop("format")
    assert_same(state, kept)
    runner.resume(state)
    runner.run(loaders(False)[:1], [("train", 1)], max_epochs=3)
    assert_same(state, kept)


def test_an_optimizer_of_another_class_is_refused(tmp_path: Path) -> None:
    path = make(EpochBasedRunner, tmp_path).save_checkpoint(tmp_path)
    runner = make(EpochBasedRunner, tmp_path)
    runner.optimizer = torch.optim.Adagrad(runner.model.parameters())
    before = runner.model.state_dict()["fc.weight"].clone()
    with pytest.raises(WeightsError, match="Adagrad"):
        runner.resume(path)
    assert torch.equal(runner.model.state_dict()["fc.weight"], before)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    runner = make(EpochBasedRunner, tmp_path)
    path = runner.save_checkpoint(tmp_path)
    runner.model.fc = torch.nn.Linear(6, 7)
    with pytest.raises(WeightsError, match=r"\(3, 6\).*7, 6"):
        runner.resume(path)
    runner.model = torch.nn.Conv2d(1, 1, 1)
    with pytest.raises(WeightsError, match="Conv2d"):
        runner.load_checkpoint(path)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    runner = make(EpochBasedRunner, tmp_path)
    runner.meta["when"] = [np.float64(1.0)]
    with pytest.raises(Exception, match=r"\['when'\]\[0\]"):
        runner.save_checkpoint(tmp_path)
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(UsageError, match="is not a hook"):
        runner.register_hook(object())
