"""A model that learns in milliseconds, its creators, and a hook that commits crimes."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from disteval.estimator import EpochBasedRunner
from disteval.estimator.hooks import BestWeightsHook, Hook
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 6, 3


class Tiny(torch.nn.Module):
    """A linear classifier; with ``dropout`` it draws from the generators in every step."""

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(FEATURES) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)
        self.fc = torch.nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dropout(self.norm(x)))

    def train_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
        x, y = data
        loss = cross_entropy(self(x), y)
        return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(y)}

    def val_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
        x, y = data
        scores = self(x)
        loss = cross_entropy(scores, y).item()
        return {"log_vars": {"loss": loss}, "num_samples": len(y), "scores": scores, "labels": y}


class Crime(Hook):
    """Does something terrible on one rank, at one stage of one epoch.

    Args:
        stage: When: a stage of hooks, or ``save`` for the middle of writing a checkpoint.
        epoch: How many epochs must be complete.
        rank: Who.
        once: A file with a byte for each time that it was done.
        kind: ``kill``, ``raise`` or ``hang``.
        often: How often to do it, each time on other processes.
    """

    def __init__(
        self, stage: str, epoch: int, rank: int, once: str, kind: str = "kill", often: int = 1
    ) -> None:
        self._when, self._once, self._kind, self._often = (epoch, rank), Path(once), kind, often
        setattr(
            self,
            "before_run" if stage == "save" else stage,
            self._lie_in_wait if stage == "save" else self._commit,
        )

    def _lie_in_wait(self, runner: Any) -> None:
        save = torch.save

        def save_half(content: Any, file: Any, **options: Any) -> None:
            if isinstance(content, dict) and "format" in content and self._is_due(runner):
                file.write(b"half of a checkpoint")
                file.flush()
                self._commit(runner)
            save(content, file, **options)

        torch.save = save_half

    def _is_due(self, runner: Any) -> bool:
        done = self._once.stat().st_size if self._once.exists() else 0
        return (runner.epoch, runner.rank) == self._when and done < self._often

    def _commit(self, runner: Any) -> None:
        if not self._is_due(runner):
            return
        with self._once.open("ab") as file:
            file.write(b"x")
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "hang":
            signal.pause()
        raise LookupError("the worker's own mistake")


class Noise(Hook):
    """Draws from all generators in every iteration, as augmentations do."""

    def before_train_iter(self, runner: Any) -> None:
        x, _ = runner.data_batch
        x += 0.1 * (random.random() + np.random.rand() + torch.rand(1))


def samples(size: int, seed: int = 0) -> TensorDataset:
    """Points whose class is a linear function of them, but for some."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    noise = torch.randn(size, CLASSES, generator=generator)
    y = (x[:, :CLASSES] + 0.3 * noise).argmax(dim=1)
    return TensorDataset(x, y)


def runner(config: dict[str, Any]) -> EpochBasedRunner:
    """A runner with whatever ``config`` asks for."""
    model = Tiny(config.get("dropout", 0.0), config.get("norm", False))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)
    work_dir = config.get("work_dir")
    made = EpochBasedRunner(
        model, optimizer=optimizer, work_dir=work_dir, max_epochs=config.get("epochs", 2)
    )
    made.register_training_hooks(
        {"policy": "cosine", "by_epoch": False},
        optimizer_config={},
        checkpoint_config=config.get("checkpoints"),
        log_config=config.get("log"),
    )
    if config.get("best"):
        made.register_hook(BestWeightsHook("accuracy"))
    if "crime" in config:
        made.register_hook(Crime(**config["crime"]), priority="VERY_LOW")
    return made


def training(config: dict[str, Any]) -> DataLoader:
    """Shuffled training data, ``batch_size`` a worker."""
    return DataLoader(samples(96), batch_size=config.get("batch_size", 8), shuffle=True)


def validation(config: dict[str, Any]) -> DataLoader:
    """Validation data, in a number that no number of workers divides."""
    return DataLoader(samples(101, seed=1), batch_size=16, shuffle=True)


def facts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What records say but for time."""
    timed = ("seconds", "samples_per_second")
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def assert_same_state(first: Path, second: Path) -> None:
    """Two states are the same to the bit, but for what a fit notes of itself."""
    a, b = (torch.load(path, weights_only=True) for path in (first, second))
    for state in (a, b):
        del state["meta"]
        state["hooks"] = [each for each in state["hooks"] if each[0] != "Crime"]
    assert_same(a, b)


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Two states, or parts of them, are the same to the bit."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for at, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}[{at}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where
