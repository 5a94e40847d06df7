"""The evaluation loops that users of other libraries write, and that of `disteval`.

Each function takes a data set and returns how many samples are right. What it needs to be built
once, such as the model, is built by `contestants`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from disteval import evaluate, get_dist_backend
from disteval.contract import BaseDistBackend
from disteval.data import ArrayDataset
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.models.resnet18 import preprocess
from disteval.models.resnet18_torch import build, make_predict
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 256
Contestant = Callable[[], int]


def contestants(dataset: ArrayDataset) -> tuple[dict[str, Contestant], list[str]]:
    """Build every loop whose libraries are installed.

    Returns:
        The loops by name; and the names of those that are missing something, with what it is.
    """
    model = build(default_weights())
    known: dict[str, tuple[str, Callable[[], Contestant]]] = {
        "usual loop, batch size 1": ("torch", lambda: lambda: usual(dataset, model, 1)),
        f"usual loop, batch size {BATCH_SIZE}": (
            "torch",
            lambda: lambda: usual(dataset, model, BATCH_SIZE),
        ),
        "torchmetrics": ("torchmetrics", lambda: lambda: torchmetrics_loop(dataset, model)),
        "accelerate": ("accelerate", lambda: lambda: accelerate_loop(dataset, model)),
        "disteval, torch": ("torch", lambda: ours(dataset, make_predict(default_weights()))),
        "torch, forward passes alone": ("torch", lambda: bare(dataset, "torch", exact=True)),
        "torch, optimised, forward passes alone": ("torch", lambda: bare(dataset, "torch")),
        "Keras evaluate": ("tensorflow", lambda: keras_loop(dataset)),
        "disteval, tensorflow": ("tensorflow", lambda: ours(dataset, predict_of("tensorflow"))),
        "tensorflow, forward passes alone": (
            "tensorflow",
            lambda: bare(dataset, "tensorflow", exact=True),
        ),
        "Flax loop": ("flax", lambda: flax_loop(dataset)),
        "disteval, jax": ("flax", lambda: ours(dataset, predict_of("jax"))),
        "jax, forward passes alone": ("flax", lambda: bare(dataset, "jax", exact=True)),
    }
    there = {name: make for name, (needs, make) in known.items() if importlib.util.find_spec(needs)}
    missing = [f"{name} ({known[name][0]})" for name in known if name not in there]
    return {name: make() for name, make in there.items()}, missing


class Pictures(Dataset):  # type: ignore[type-arg]
    """A data set that normalises one picture at a time, as in tutorials."""

    def __init__(self, dataset: ArrayDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = preprocess(self.dataset.images[index : index + 1])[0]
        return torch.from_numpy(image), int(self.dataset.labels[index])


def usual(dataset: ArrayDataset, model: torch.nn.Module, batch_size: int) -> int:
    """Evaluate with a DataLoader, a forward pass and a comparison for each sample."""
    right = []
    with torch.no_grad():
        for images, labels in DataLoader(Pictures(dataset), batch_size):
            predicted = model(images).argmax(dim=1)
            right += [int(p) == int(label) for p, label in zip(predicted, labels, strict=True)]
    return sum(right)


def torchmetrics_loop(dataset: ArrayDataset, model: torch.nn.Module) -> int:
    """Evaluate by updating a metric with each batch."""
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(num_classes=10, average="micro")
    with torch.no_grad():
        for images, labels in DataLoader(Pictures(dataset), BATCH_SIZE):
            metric.update(model(images), labels)
    return round(float(metric.compute()) * len(dataset))


def accelerate_loop(dataset: ArrayDataset, model: torch.nn.Module) -> int:
    """Evaluate by gathering predictions and labels of each batch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    prepared, loader = accelerator.prepare(model, DataLoader(Pictures(dataset), BATCH_SIZE))
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            predicted = prepared(images).argmax(dim=1)
            predicted, labels = accelerator.gather_for_metrics((predicted, labels))
            right += int((predicted == labels).sum())
    return right


def ours(dataset: ArrayDataset, predict: Callable[[Any], Any]) -> Contestant:
    """Evaluate with `disteval.evaluate` in this process."""
    return partial(_evaluated, predict, dataset, get_dist_backend("non_dist"))


def _evaluated(
    predict: Callable[[Any], Any], dataset: ArrayDataset, backend: BaseDistBackend
) -> int:
    metrics = {"accuracy": Accuracy(counts=True)}
    result = evaluate(predict, dataset, metrics, backend, BATCH_SIZE)
    return int(result.metrics["accuracy"]["correct_top1"])


def predict_of(framework: str, exact: bool = False) -> Callable[[Any], Any]:
    """Return the framework's model as a function of pictures."""
    module = importlib.import_module(f"disteval.models.resnet18_{framework}")
    predict: Callable[[Any], Any] = module.make_predict(default_weights(), exact=exact)
    return predict


def bare(dataset: ArrayDataset, framework: str, exact: bool = False) -> Contestant:
    """Run forward passes only; without folded normalisations this is the loop that users write."""
    return partial(passes, dataset, predict_of(framework, exact))


def passes(dataset: ArrayDataset, predict: Callable[[Any], Any]) -> int:
    """Compute the scores of each batch, and compare them at the end."""
    scores = [
        predict(dataset.images[start : start + BATCH_SIZE])
        for start in range(0, len(dataset), BATCH_SIZE)
    ]
    found = np.concatenate([np.asarray(each) for each in scores])
    return int((found.argmax(axis=1) == dataset.labels).sum())


def keras_loop(dataset: ArrayDataset) -> Contestant:
    """Evaluate with ``model.evaluate`` on a ``tf.data`` pipeline."""
    import keras
    import tensorflow as tf
    from disteval.models import resnet18_tensorflow as resnet18

    model = resnet18.build(default_weights())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # Keras insists on one
    model.compile(loss=loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])

    def normalise(images: Any, labels: Any) -> Any:
        return tf.transpose(resnet18.preprocess(images), (0, 2, 3, 1)), labels

    pictures = tf.data.Dataset.from_tensor_slices((dataset.images, dataset.labels))
    pipeline = pictures.batch(BATCH_SIZE).map(normalise).prefetch(tf.data.AUTOTUNE)

    def run() -> int:
        found = model.evaluate(pipeline, verbose=0, return_dict=True)
        return round(float(found["sparse_categorical_accuracy"]) * len(dataset))

    return run


def flax_loop(dataset: ArrayDataset) -> Contestant:
    """Evaluate with a jitted step for each batch; the smaller last batch is compiled separately."""
    import jax
    import jax.numpy as jnp
    from disteval.models import resnet18_jax as resnet18

    model, held = resnet18.ResNet18(), resnet18.variables(default_weights())

    @jax.jit
    def step(held: Any, images: Any, labels: Any) -> Any:
        scores = model.apply(held, images.transpose(0, 2, 3, 1))
        return jnp.sum(scores.argmax(axis=1) == labels)

    def run() -> int:
        right = 0
        for start in range(0, len(dataset), BATCH_SIZE):
            images = preprocess(dataset.images[start : start + BATCH_SIZE])
            right += int(step(held, images, dataset.labels[start : start + BATCH_SIZE]))
        return right

    return run


def evaluate_on_rank(backend: BaseDistBackend, dataset: ArrayDataset) -> int:
    """Evaluate with `disteval.evaluate` on one rank of a running world."""
    return _evaluated(_kept_predict(), dataset, backend)


@cache
def _kept_predict() -> Callable[[Any], Any]:
    """Return the model, which other loops have before they are timed, too."""
    return make_predict(default_weights())
