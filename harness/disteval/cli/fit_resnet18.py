"""ResNet-18 on CIFAR-10 for ``disteval fit``: the creators that an estimator takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from disteval.data import load_cifar10, load_embedded
from disteval.data.plan import filled_rows
from disteval.errors import WeightsError
from disteval.estimator import EpochBasedRunner
from disteval.estimator.checkpoint import BEST_WEIGHTS, weights_of
from disteval.estimator.hooks import BestWeightsHook, LrHook
from disteval.estimator.runner import BaseRunner
from disteval.models.digest import check_digest
from disteval.models.resnet18_torch import ResNet18, make_predict, preprocess

EVAL_BATCH_SIZE = 256


class Classifier(ResNet18):
    """ResNet-18 with the steps that a runner takes.

    Batches are pictures, uint8 of shape (B, 3, 32, 32), and labels, int64 of shape (B,). In
    evaluation it uses the function and the batch size of ``disteval eval``, so that both count the
    same number of right predictions with the same weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self._predict: Any = None
        # Each block begins as its shortcut, so that training can start with a large learning rate.
        for name, parameter in self.named_parameters():
            if name.endswith("bn2.weight"):
                torch.nn.init.zeros_(parameter)

    def train(self, mode: bool = True) -> Classifier:
        """Turn to training or evaluation, before which weights may have changed."""
        self._predict = None
        super().train(mode)
        return self

    def train_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
        """Return the loss of a batch, half of whose pictures are mirrored."""
        device = self.fc.weight.device
        images, labels = (each.to(device) for each in data)
        mirrored = torch.rand(len(images)).lt(0.5).to(device)[:, None, None, None]
        images = preprocess(torch.where(mirrored, images.flip(3), images))
        scores = self(images.contiguous(memory_format=torch.channels_last))
        loss = cross_entropy(scores, labels)
        return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(labels)}

    def val_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
        """Return the scores of a batch of at most `EVAL_BATCH_SIZE` pictures."""
        images, labels = data
        if self._predict is None:
            weights = {
                name: tensor.numpy()
                for name, tensor in weights_of(self).items()
                if not name.endswith("num_batches_tracked")
            }
            self._predict = make_predict(weights, str(self.fc.weight.device))
        rows_of = getattr(self._predict, "slice_rows", lambda rows: rows)
        rows = filled_rows(len(images), EVAL_BATCH_SIZE, rows_of(EVAL_BATCH_SIZE))
        batch = np.zeros((rows, *images.shape[1:]), np.uint8)
        batch[: len(images)] = images.numpy()
        scores = self._predict(batch)[: len(images)]
        loss = cross_entropy(scores, labels.to(scores.device)).item()
        return {
            "log_vars": {"loss": loss},
            "num_samples": len(labels),
            "scores": scores,
            "labels": labels,
        }


class RiseAndFall(LrHook):
    """The learning rate of a short training: it rises for a seventh of it, and then falls to 0.

    Raises:
        UsageError: The runner does not know how long training is.
    """

    def get_lr(self, runner: BaseRunner, base_lr: float) -> float:
        """Return the rate for the next iteration; ``base_lr`` is the highest."""
        done, end = self.progress(runner)
        rise = end / 7
        return base_lr * min((done + 1) / rise, (end - done) / (end - rise))


def create_runner(config: Mapping[str, Any]) -> EpochBasedRunner:
    """Create the model, its optimizer and its hooks.

    Args:
        config: ``lr``, ``epochs`` and ``work_dir``.
    """
    model = Classifier().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    runner = EpochBasedRunner(
        model, optimizer=optimizer, work_dir=config["work_dir"], max_epochs=config["epochs"]
    )
    runner.register_training_hooks(
        RiseAndFall(by_epoch=False),
        optimizer_config={},
        checkpoint_config={"interval": 1, "max_keep_ckpts": 2},
        custom_hooks_config=BestWeightsHook("correct"),
    )
    return runner


def train_loader(config: Mapping[str, Any]) -> DataLoader:
    """Load the training split of ``data``, in batches of ``batch_size``."""
    return DataLoader(load(config["data"], "train"), config["batch_size"], shuffle=True)


def val_loader(config: Mapping[str, Any]) -> DataLoader:
    """Load the test split of ``data``."""
    return DataLoader(load(config["data"], "test"), EVAL_BATCH_SIZE)


def load(data: str | None, split: Literal["train", "test"]) -> TensorDataset:
    """Load a split of CIFAR-10 in the folder ``data``; None stands for the embedded data set."""
    found = load_embedded(split) if data is None else load_cifar10(Path(data), split)
    return TensorDataset(torch.from_numpy(found.images), torch.from_numpy(found.labels))


def read_best(work_dir: Path) -> dict[str, int] | None:
    """Return the epoch of the best weights, and its ``correct`` and ``evaluated``.

    None is returned where no weights were written.

    Raises:
        WeightsError: The file is damaged, or another program has written it.
    """
    path = work_dir / BEST_WEIGHTS
    if not path.is_file():
        return None
    try:
        check_digest(path.read_bytes(), str(path))
        with safe_open(path, "np") as file:
            facts = file.metadata()
        return {name: int(facts[name]) for name in ("epoch", "correct", "evaluated")}
    except (WeightsError, SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{path} is damaged, or was not written by this training ({error}); move it away: the "
            f"next epoch that is better than all before writes it again"
        ) from error
