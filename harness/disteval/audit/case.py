"""A case: what a user's evaluation function is given on each rank."""

from __future__ import annotations

import os
import secrets
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from disteval.audit.answers import rounding_of
from disteval.audit.planted import CLASSES, Planted
from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, shape_of

_FETCH = struct.Struct("<qq")
ITSELF = -1
"""In place of a loader worker: the rank fetched the sample itself."""


@dataclass(frozen=True)
class Settings:
    """The settings of a case, which its replay names.

    Attributes:
        size: The number of samples, N.
        batch_size: The number of samples in a batch, B.
        world_size: The number of ranks, W.
        num_workers: The number of loader workers of each rank.
        shuffle: Whether the function should deal the samples in another order.
        tokens: Whether samples have tokens.
        ids: Whether the ids of samples are other numbers than their positions.
        seed: The seed of shuffling, and of what is planted.
        damage: What happens to a job or to the part that it writes, a key of
            `disteval.audit.jobs.DAMAGES`; an empty text for nothing.
        job: The number of that job.
    """

    size: int
    batch_size: int
    world_size: int
    num_workers: int = 0
    shuffle: bool = False
    tokens: bool = False
    ids: bool = False
    seed: int = 0
    damage: str = ""
    job: int = 0

    @property
    def steps(self) -> int:
        """The number of batches that a rank has, if each has as many."""
        return -(-self.size // (self.world_size * self.batch_size))

    def __str__(self) -> str:
        """Return the case as `disteval.audit.cases.parse` reads it."""
        words = [f"N={self.size}", f"B={self.batch_size}", f"W={self.world_size}"]
        words += [f"workers={self.num_workers}"] * (self.num_workers > 0)
        words += ["shuffle"] * self.shuffle + ["tokens"] * self.tokens + ["ids"] * self.ids
        words += [f"{self.damage}={self.job}"] * bool(self.damage)
        words += [f"seed={self.seed}"] * (self.seed != 0)
        return ",".join(words)


class Fetches:
    """Notes which sample was fetched by a rank and, in a file that they share, its loader workers.

    The file is created by a worker's first fetch, in the world's folder, or among temporary files
    on a host that lacks it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        there = folder if folder.is_dir() else Path(tempfile.gettempdir())
        self._path = there / f"disteval-audit-{rank}-{secrets.token_hex(4)}"
        self._rank = os.getpid()
        self._own: list[int] = []

    def note(self, index: int) -> None:
        """Note that this process has fetched a sample."""
        if os.getpid() == self._rank:
            self._own.append(index)
            return
        # A worker of torch's loader has a number; another process is told by its id, negative.
        torch = sys.modules.get("torch")
        info = torch.utils.data.get_worker_info() if torch is not None else None
        worker = -os.getpid() if info is None else int(info.id)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _FETCH.pack(index, worker))  # appended whole
        finally:
            os.close(descriptor)

    def take(self) -> list[tuple[int, int]]:
        """Return the samples that this rank fetched, each with a worker, and remove the file.

        A worker's number is that of torch's loader. It is `ITSELF` for a fetch by the rank itself,
        and the negative process id for one by another process.
        """
        data = self._path.read_bytes() if self._path.exists() else b""
        self._path.unlink(missing_ok=True)
        return [*((index, ITSELF) for index in self._own), *_FETCH.iter_unpack(data)]


class Dataset:
    """The samples of a case, of which each is a dict; see `Planted.sample`."""

    def __init__(self, planted: Planted, fetches: Fetches) -> None:
        self._planted = planted
        self._fetches = fetches

    def __len__(self) -> int:
        return self._planted.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        at = int(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"the data set has {len(self)} samples, and no sample {at}")
        self._fetches.note(at % len(self))
        return self._planted.sample(at % len(self))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))


class Stream:
    """The samples of a case as an iterable, which every rank and loader worker reads whole."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._dataset)


class SizedStream(Stream):
    """A stream with a length."""

    def __len__(self) -> int:
        return len(self._dataset)


class Case:
    """What a user's evaluation function is given: samples, a model, and how to read them.

    Attributes:
        dataset: The samples, with ``len()`` and by index; each is a dict with ``id`` (int, which
            is the sample's index in some cases only), ``x`` (float32 of shape (8,)), ``label``
            (int), ``value`` (float32), and with ``--tokens`` also ``tokens`` and ``mask`` (int64 of
            shape (T,), where T differs between samples).
        batch_size: The number of samples in a batch of each rank.
        num_workers: The number of loader workers of each rank.
        shuffle: Whether to read the samples in another order, which ``seed`` decides.
        seed: The seed of shuffling.
        rank: The rank of this process.
        world_size: The number of ranks.
        folder: A folder that is empty when the function is called, and that all ranks share.
        logs: The results that were logged, by name.
    """

    def __init__(
        self, settings: Settings, planted: Planted, rank: int, fetches: Fetches, folder: Path
    ) -> None:
        self.dataset = Dataset(planted, fetches)
        self.batch_size = settings.batch_size
        self.num_workers = settings.num_workers
        self.shuffle = settings.shuffle
        self.seed = settings.seed
        self.rank = rank
        self.world_size = settings.world_size
        self.folder = folder
        self._has_tokens = settings.tokens
        self._rounding = 0.0
        self.logs: dict[str, Any] = {}
        self._modules: list[Any] = []

    def stream(self, sized: bool = False) -> Any:
        """Return the same samples as a fresh iterable; a torch IterableDataset if torch is loaded.

        Every process that iterates over it reads every sample, as from a file.

        Args:
            sized: Whether the iterable has a length.
        """
        if "torch" in sys.modules:
            from disteval.audit import torch_parts

            return (torch_parts.SizedTorchStream if sized else torch_parts.TorchStream)(
                self.dataset
            )
        return (SizedStream if sized else Stream)(self.dataset)

    def samples(self) -> list[dict[str, Any]]:
        """Return all samples, to write them where a library reads; these fetches are not noted."""
        return [self.dataset._planted.sample(i) for i in range(len(self.dataset))]

    def predict(self, x: Any) -> Any:
        """Return the scores of a batch, as an array of the framework and device of ``x``.

        Args:
            x: The field ``x`` of B samples: shape (B, 8), an array of NumPy, torch, JAX or
                TensorFlow, or a list.

        Returns:
            Scores of shape (B, 16), of the type of ``x`` if that is a floating point type.

        Raises:
            UsageError: ``x`` has another shape.
        """
        shape = shape_of(x)
        if len(shape) != 2:
            raise UsageError(f"case.predict takes the x of B samples, shape (B, 8), not {shape}")
        kind = kind_of(x)
        self._rounding = max(self._rounding, rounding_of(x))
        if kind == "torch":
            one_hot = sys.modules["torch"].nn.functional.one_hot(x[:, 0].long(), CLASSES)
            return one_hot.to(x.dtype) if x.is_floating_point() else one_hot.float()
        x = x if hasattr(x, "dtype") else np.asarray(x)
        dtype = x.dtype if "float" in str(x.dtype) else "float32"
        if kind == "jax":
            return sys.modules["jax"].nn.one_hot(x[:, 0].astype(int), CLASSES, dtype=dtype)
        if kind == "tensorflow":
            tensorflow = sys.modules["tensorflow"]
            return tensorflow.one_hot(tensorflow.cast(x[:, 0], "int32"), CLASSES, dtype=dtype)
        return np.eye(CLASSES, dtype=dtype)[x[:, 0].astype(int)]

    def token_losses(self, tokens: Any) -> Any:
        """Return the loss of each token, floats of the same shape; padding is yours to leave out.

        Args:
            tokens: The field ``tokens`` of a batch, an array of any shape.
        """
        if kind_of(tokens) == "torch":
            return tokens.float()
        if kind_of(tokens) == "tensorflow":
            return sys.modules["tensorflow"].cast(tokens, "float32")
        return tokens.astype("float32")

    def logged(self, name: str, value: Any) -> None:
        """Note a result that a trainer logs instead of returning it, as if it were returned.

        Call it in the trainer's callback or logger, on one rank or on all. The last value counts.

        Args:
            name: The name of the result, such as ``loss``, whatever the trainer calls it.
            value: A number, as a result has it.
        """
        self.logs[name] = value

    def module(self) -> Any:
        """Return a ``torch.nn.Module`` with one parameter that computes scores and losses.

        It computes in the type of its parameter. Called with ``x`` alone, it returns the scores.
        Called with the fields of a batch by name, as trainers do, it returns a dict with ``loss``,
        the batch's mean, and ``logits``.
        """
        from disteval.audit.torch_parts import PlantedModule

        self._modules.append(PlantedModule())
        return self._modules[-1]

    @property
    def rounding(self) -> float:
        """The relative error of numbers in the coarsest type in which scores were computed."""
        return max([self._rounding, *(rounding_of(module.scale) for module in self._modules)])

    @property
    def in_training(self) -> bool:
        """Whether the module was called in training mode."""
        return any(module.was_in_training for module in self._modules)

    def hf_dataset(self) -> Any:
        """Return the samples as a ``datasets.Dataset``; its fetches are not noted."""
        from datasets import Dataset as HuggingFaceDataset

        samples = self.samples()
        names = samples[0] if samples else ("id", "x", "label", "value")
        return HuggingFaceDataset.from_dict(
            {name: [np.asarray(s[name]).tolist() for s in samples] for name in names}
        )

    def tf_dataset(self) -> Any:
        """Return the samples as a ``tf.data.Dataset`` that reads them all."""
        import tensorflow

        signature = {
            "id": tensorflow.TensorSpec((), "int64"),
            "x": tensorflow.TensorSpec((8,), "float32"),
            "label": tensorflow.TensorSpec((), "int64"),
            "value": tensorflow.TensorSpec((), "float32"),
        }
        if self._has_tokens:
            signature |= dict.fromkeys(("tokens", "mask"), tensorflow.TensorSpec((None,), "int64"))

        def generate() -> Iterator[dict[str, Any]]:
            return ({name: sample[name] for name in signature} for sample in self.dataset)

        return tensorflow.data.Dataset.from_generator(generate, output_signature=signature)
