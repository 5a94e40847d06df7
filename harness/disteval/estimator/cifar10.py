"""ResNet-18 on CIFAR-10 for the estimator: the runner and the loaders of ``disteval fit``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from disteval.data import ArrayDataset, load_cifar10, load_embedded
from disteval.estimator.checkpoint import (
    BEST_WEIGHTS,
    weights_of,
    write_on_rank_0,
    write_safetensors,
)
from disteval.estimator.epoch_based import EpochBasedRunner
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.hooks.lr import LrHook
from disteval.models.resnet18_torch import ResNet18, make_predict, preprocess

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

EVAL_BATCH_SIZE = 256
_TOLD = ("epoch", "correct", "evaluated")

Batch = tuple[torch.Tensor, torch.Tensor]
"""Pictures, uint8 of shape (B, 3, 32, 32), and labels, int64 of shape (B,)."""


class Pictures(Dataset):  # type: ignore[misc]
    """Pictures in memory, of which a loader with ``collate_fn=whole`` takes a batch at a time.

    Args:
        dataset: What to take them from.
    """

    def __init__(self, dataset: ArrayDataset) -> None:
        self._images = torch.from_numpy(dataset.images)
        self._labels = torch.from_numpy(dataset.labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        return self._images[index], self._labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.tensor(indices)
        return self._images[chosen], self._labels[chosen]


def whole(batch: Batch) -> Batch:
    """Return a batch that is one already."""
    return batch


class Classifier(ResNet18):
    """ResNet-18 with the steps that a runner takes.

    In evaluation it computes as ``disteval eval`` does with the same weights, by the same function
    in batches of the same size, so that both find the same number of right predictions.
    """

    def __init__(self) -> None:
        super().__init__()
        self._predict: Any = None
        # Each block begins as its shortcut, which lets a large learning rate in at once.
        for name, parameter in self.named_parameters():
            if name.endswith("bn2.weight"):
                torch.nn.init.zeros_(parameter)

    def train(self, mode: bool = True) -> Classifier:
        """Turn to training or evaluation; either way weights may have changed since."""
        self._predict = None
        super().train(mode)
        return self

    def train_step(self, data: Batch, optimizer: Any) -> dict[str, Any]:
        """Compute the loss of a batch, half of whose pictures are mirrored."""
        device = self.fc.weight.device
        images, labels = (each.to(device) for each in data)
        mirrored = torch.rand(len(images)).lt(0.5).to(device)[:, None, None, None]
        images = preprocess(torch.where(mirrored, images.flip(3), images))
        scores = self(images.contiguous(memory_format=torch.channels_last))
        loss = cross_entropy(scores, labels)
        return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(labels)}

    def val_step(self, data: Batch, optimizer: Any) -> dict[str, Any]:
        """Score a batch of at most `EVAL_BATCH_SIZE` pictures."""
        images, labels = data
        if self._predict is None:
            weights = {
                name: tensor.numpy()
                for name, tensor in weights_of(self).items()
                if not name.endswith("num_batches_tracked")
            }
            self._predict = make_predict(weights, str(self.fc.weight.device))
        batch = np.zeros((EVAL_BATCH_SIZE, *images.shape[1:]), np.uint8)
        batch[: len(images)] = images.numpy()
        scores = self._predict(batch)[: len(images)]
        loss = cross_entropy(scores, labels.to(scores.device)).item()
        return {
            "log_vars": {"loss": loss},
            "num_samples": len(labels),
            "scores": scores,
            "labels": labels,
        }


class SaveBestWeights(Hook):
    """Writes `BEST_WEIGHTS` after each validation that found more right predictions than before."""

    def __init__(self) -> None:
        self._most = -1

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Look at the record; rank 0 writes."""
        if record["mode"] != "val" or record["correct"] <= self._most or runner.work_dir is None:
            return
        self._most = record["correct"]
        path = runner.work_dir / BEST_WEIGHTS
        told = {name: str(record[name]) for name in _TOLD}
        write_on_rank_0(
            runner.backend, path, lambda: write_safetensors(path, weights_of(runner.model), told)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the most right predictions so far."""
        return {"most": self._most}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self._most = int(state["most"])


def read_best(work_dir: Path) -> dict[str, int] | None:
    """Read which epoch's weights `BEST_WEIGHTS` holds; None where there is no such file.

    Returns:
        Its ``epoch``, and of its validation ``correct`` and ``evaluated``.
    """
    path = work_dir / BEST_WEIGHTS
    if not path.is_file():
        return None
    with safe_open(path, "np") as file:
        told = file.metadata()
    return {name: int(told[name]) for name in _TOLD}


class RiseAndFall(LrHook):
    """The learning rate of a short training: up in a straight line for a seventh of it, then down.

    Raises:
        UsageError: The runner does not know how long training is.
    """

    def __init__(self) -> None:
        super().__init__(by_epoch=False)

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate for the next iteration; ``base_lr`` is the peak."""
        done, end = self.progress(runner)
        rise = end / 7
        return base_lr * min((done + 1) / rise, (end - done) / (end - rise))


def create_runner(config: Mapping[str, Any]) -> EpochBasedRunner:
    """Build the model, its optimizer and its hooks.

    Args:
        config: ``lr``, ``epochs`` and ``work_dir``; with None for a ``work_dir`` nothing is saved.
    """
    model = Classifier()
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    runner = EpochBasedRunner(
        model, optimizer=optimizer, work_dir=config["work_dir"], max_epochs=config["epochs"]
    )
    saved = config["work_dir"] is not None
    runner.register_training_hooks(
        RiseAndFall(),
        optimizer_config={},
        checkpoint_config={"interval": 1, "max_keep_ckpts": 2} if saved else None,
    )
    runner.register_hook(SaveBestWeights(), priority="VERY_LOW")
    return runner


def create_train_loader(config: Mapping[str, Any]) -> DataLoader:
    """Load the training split; ``config`` has ``data`` (see `load`) and ``batch_size``."""
    pictures = Pictures(load(config["data"], "train"))
    return DataLoader(pictures, config["batch_size"], shuffle=True, collate_fn=whole)


def create_val_loader(config: Mapping[str, Any]) -> DataLoader:
    """Load the test split; ``config`` has ``data`` (see `load`)."""
    return DataLoader(Pictures(load(config["data"], "test")), EVAL_BATCH_SIZE, collate_fn=whole)


def load(data: str | os.PathLike[str] | None, split: Literal["train", "test"]) -> ArrayDataset:
    """Load a split of CIFAR-10 in the folder ``data``; None stands for the embedded data set."""
    return load_embedded(split) if data is None else load_cifar10(Path(data), split)
