"""The data that torchmetrics' classes take, drawn at random: one column for each argument."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

SAMPLES, CLASSES, LABELS = 14, 3, 4

Columns = tuple[Any, ...]

Maker = Callable[[np.random.Generator], Columns]

_WORDS = ("a", "cat", "the", "mat", "sat", "on", "dog", "ran", "far")


def binary(random: np.random.Generator) -> Columns:
    scores = random.permutation(SAMPLES).astype(np.float32) / np.float32(SAMPLES)
    return scores, random.integers(0, 2, SAMPLES)


def binary_groups(random: np.random.Generator) -> Columns:
    return (*binary(random), np.arange(SAMPLES) % 2)


def multiclass(random: np.random.Generator) -> Columns:
    scores = random.dirichlet(np.ones(CLASSES), SAMPLES).astype(np.float32)
    return scores, np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, SAMPLES - 3)])


def multiclass_places(random: np.random.Generator) -> Columns:
    shape = (2, SAMPLES, 5)
    one, other = random.integers(0, CLASSES, shape)
    return one, other


def multilabel(random: np.random.Generator) -> Columns:
    scores = random.random((SAMPLES, LABELS), dtype=np.float32)
    return scores, random.integers(0, 2, (SAMPLES, LABELS))


def numbers(random: np.random.Generator) -> Columns:
    one, other = random.random((2, SAMPLES), dtype=np.float32) + np.float32(0.5)
    return one, other


def one_number(random: np.random.Generator) -> Columns:
    return (random.random(SAMPLES, dtype=np.float32),)


def vectors(random: np.random.Generator) -> Columns:
    one, other = random.random((2, SAMPLES, 3), dtype=np.float32)
    return one, other


def distributions(random: np.random.Generator) -> Columns:
    one, other = random.dirichlet(np.ones(4), (2, SAMPLES))
    return one, other


def ensembles(random: np.random.Generator) -> Columns:
    return random.random((SAMPLES, 5)), random.random(SAMPLES)


def tokens(random: np.random.Generator) -> Columns:
    logits = random.normal(size=(SAMPLES, 6, 9)).astype(np.float32)
    return logits, random.integers(0, 9, (SAMPLES, 6))


def _texts(random: np.random.Generator) -> list[str]:
    lengths = random.integers(4, 9, SAMPLES)
    return [" ".join(random.choice(_WORDS, length)) for length in lengths]


def texts(random: np.random.Generator) -> Columns:
    return _texts(random), _texts(random)


def translations(random: np.random.Generator) -> Columns:
    predicted = _texts(random)
    return predicted, [[text, text[: len(text) // 2] + "mat"] for text in predicted[::-1]]


def answers(random: np.random.Generator) -> Columns:
    predicted, right = _texts(random), _texts(random)
    return (
        [{"prediction_text": text, "id": str(i)} for i, text in enumerate(predicted)],
        [
            {"answers": {"answer_start": [0], "text": [text, predicted[i][:6]]}, "id": str(i)}
            for i, text in enumerate(right)
        ],
    )


def pictures(random: np.random.Generator) -> Columns:
    one = random.random((SAMPLES, 3, 16, 16), dtype=np.float32)
    noise = random.random((SAMPLES, 3, 16, 16), dtype=np.float32) * np.float32(0.2)
    return np.clip(one + noise, 0, 1), one


def grey_pictures(random: np.random.Generator) -> Columns:
    one, other = pictures(random)
    return one[:, :1], other[:, :1]


def large_pictures(random: np.random.Generator) -> Columns:
    one = random.random((SAMPLES, 1, 48, 48), dtype=np.float32)
    return np.clip(one + np.float32(0.1) * random.random(one.shape, dtype=np.float32), 0, 1), one


def one_picture(random: np.random.Generator) -> Columns:
    return pictures(random)[:1]


def sounds(random: np.random.Generator) -> Columns:
    one = random.normal(size=(SAMPLES, 200)).astype(np.float32)
    return one + random.normal(size=one.shape).astype(np.float32) / 2, one


def speakers(random: np.random.Generator) -> Columns:
    one = random.normal(size=(SAMPLES, 2, 200)).astype(np.float32)
    return one + random.normal(size=one.shape).astype(np.float32) / 2, one


def _distortion(predicted: Any, right: Any) -> Any:
    functional = importlib.import_module("torchmetrics.functional.audio")
    return functional.scale_invariant_signal_distortion_ratio(predicted, right)


def spectra(random: np.random.Generator) -> Columns:
    one, other = random.normal(size=(2, SAMPLES, 1, 129, 5, 2)).astype(np.float32)
    return one + other / 2, one


def panoptic(random: np.random.Generator) -> Columns:
    shape = (2, SAMPLES, 6, 6)
    kinds, numbers_ = random.integers(0, 3, shape), random.integers(0, 2, shape)
    one, other = np.stack([kinds, numbers_], axis=-1)
    return one, other


def masks(random: np.random.Generator) -> Columns:
    one, other = random.integers(0, CLASSES, (2, SAMPLES, 8, 8))
    return one, other


def clusters(random: np.random.Generator) -> Columns:
    one, other = random.integers(0, CLASSES, (2, SAMPLES))
    return one, other


def points(random: np.random.Generator) -> Columns:
    return random.normal(size=(SAMPLES, 4)), np.arange(SAMPLES) % CLASSES


def raters(random: np.random.Generator) -> Columns:
    return (random.multinomial(6, np.ones(3) / 3, SAMPLES),)


def queries(random: np.random.Generator) -> Columns:
    scores = random.permutation(SAMPLES).astype(np.float32) / np.float32(SAMPLES)
    target = np.arange(SAMPLES) // 3 % 2
    return scores, target, np.arange(SAMPLES) % 4


def shapes(random: np.random.Generator) -> Columns:
    one, other = random.normal(size=(2, SAMPLES, 6, 3))
    return one, other


def faces(random: np.random.Generator) -> Columns:
    one, other = random.normal(size=(2, SAMPLES, 5, 3))
    return one, other


_THREE = (
    "AUROC Accuracy AveragePrecision ConfusionMatrix EER F1Score HammingDistance JaccardIndex "
    "LogAUC MatthewsCorrCoef NegativePredictiveValue Precision PrecisionRecallCurve ROC Recall "
    "Specificity StatScores"
)


def number_pairs(random: np.random.Generator) -> Columns:
    one, other = random.random((2, SAMPLES, 2), dtype=np.float32) + np.float32(0.5)
    return one, other


def weighted(random: np.random.Generator) -> Columns:
    one, other = random.random((2, SAMPLES), dtype=np.float32)
    return one, other


def two_tasks(random: np.random.Generator) -> Columns:
    (scores, labels), (found, right) = binary(random), numbers(random)
    return {"click": scores, "price": found}, {"click": labels, "price": right}


def one_hot_masks(random: np.random.Generator) -> Columns:
    one, other = np.moveaxis(np.eye(CLASSES, dtype=np.int64)[np.stack(masks(random))], -1, 2)
    return one, other
