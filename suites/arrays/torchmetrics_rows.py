"""Which of torchmetrics' classes are tried with `from_torchmetrics`, with what, and on which data.

One row is one class. A row's data are drawn from a fixed seed: columns with one entry for each
sample, as the class's ``update`` takes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SAMPLES, CLASSES, LABELS = 14, 3, 4

Columns = tuple[Any, ...]

Maker = Callable[[np.random.Generator], Columns]

_WORDS = ("a", "cat", "the", "mat", "sat", "on", "dog", "ran", "far")


def _reals(random: np.random.Generator, shape: Any) -> Any:
    return random.random(shape, dtype=np.float32)


def _positive(random: np.random.Generator, shape: Any) -> Any:
    return _reals(random, shape) + np.float32(0.5)


def _normal(random: np.random.Generator, shape: Any) -> Any:
    return random.normal(size=shape)


def _classes(random: np.random.Generator, shape: Any) -> Any:
    return random.integers(0, CLASSES, shape)


def _pairs(draw: Callable[[np.random.Generator, Any], Any], *shape: int) -> Maker:
    """Return what makes two columns whose entries have a shape."""
    return lambda random: tuple(draw(random, (2, SAMPLES, *shape)))


def _noisy(draw: Callable[[np.random.Generator, Any], Any], noise: float, *shape: int) -> Maker:
    """Return what makes a column whose entries have a shape, after the same with noise."""

    def make(random: np.random.Generator) -> Columns:
        one, other = (draw(random, (SAMPLES, *shape)).astype(np.float32) for _ in range(2))
        return one + other * np.float32(noise), one

    return make


def _clipped(make: Maker) -> Maker:
    return lambda random: tuple(np.clip(column, 0, 1) for column in make(random))


def _scores(random: np.random.Generator) -> Any:
    return random.permutation(SAMPLES).astype(np.float32) / np.float32(SAMPLES)


def binary(random: np.random.Generator) -> Columns:
    return _scores(random), random.integers(0, 2, SAMPLES)


def binary_groups(random: np.random.Generator) -> Columns:
    return (*binary(random), np.arange(SAMPLES) % 2)


def multiclass(random: np.random.Generator) -> Columns:
    scores = random.dirichlet(np.ones(CLASSES), SAMPLES).astype(np.float32)
    return scores, np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, SAMPLES - 3)])


def multilabel(random: np.random.Generator) -> Columns:
    return _reals(random, (SAMPLES, LABELS)), random.integers(0, 2, (SAMPLES, LABELS))


def one_number(random: np.random.Generator) -> Columns:
    return (_reals(random, SAMPLES),)


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
    predicted, right = texts(random)
    rights = [[text, other[:6]] for text, other in zip(right, predicted, strict=True)]
    return (
        [{"prediction_text": text, "id": str(i)} for i, text in enumerate(predicted)],
        [
            {"answers": {"answer_start": [0], "text": each}, "id": str(i)}
            for i, each in enumerate(rights)
        ],
    )


pictures = _clipped(_noisy(_reals, 0.2, 3, 16, 16))
large_pictures = _clipped(_noisy(_reals, 0.1, 1, 48, 48))
sounds, speakers = _noisy(_normal, 0.5, 200), _noisy(_normal, 0.5, 2, 200)
spectra = _noisy(_normal, 0.5, 1, 129, 5, 2)
numbers, number_pairs = _pairs(_positive), _pairs(_positive, 2)
weighted, vectors = _pairs(_reals), _pairs(_reals, 3)
shapes, faces = _pairs(_normal, 6, 3), _pairs(_normal, 5, 3)
clusters, multiclass_places, masks = _pairs(_classes), _pairs(_classes, 5), _pairs(_classes, 8, 8)
distributions = _pairs(lambda random, shape: random.dirichlet(np.ones(4), shape))


def grey_pictures(random: np.random.Generator) -> Columns:
    return tuple(column[:, :1] for column in pictures(random))


def one_picture(random: np.random.Generator) -> Columns:
    return pictures(random)[:1]


def _distortion(predicted: Any, right: Any) -> Any:
    functional = importlib.import_module("torchmetrics.functional.audio")
    return functional.scale_invariant_signal_distortion_ratio(predicted, right)


def panoptic(random: np.random.Generator) -> Columns:
    shape = (2, SAMPLES, 6, 6)
    kinds, numbers_ = random.integers(0, 3, shape), random.integers(0, 2, shape)
    return tuple(np.stack([kinds, numbers_], axis=-1))


def points(random: np.random.Generator) -> Columns:
    return random.normal(size=(SAMPLES, 4)), np.arange(SAMPLES) % CLASSES


def raters(random: np.random.Generator) -> Columns:
    return (random.multinomial(6, np.ones(3) / 3, SAMPLES),)


def queries(random: np.random.Generator) -> Columns:
    return _scores(random), np.arange(SAMPLES) // 3 % 2, np.arange(SAMPLES) % 4


def two_tasks(random: np.random.Generator) -> Columns:
    (scores, labels), (found, right) = binary(random), numbers(random)
    return {"click": scores, "price": found}, {"click": labels, "price": right}


def one_hot_masks(random: np.random.Generator) -> Columns:
    return tuple(np.moveaxis(np.eye(CLASSES, dtype=np.int64)[np.stack(masks(random))], -1, 2))


@dataclass(frozen=True)
class Row:
    """A class that is tried.

    Attributes:
        name: The module below torchmetrics and the class, as ``regression.R2Score``.
        columns: Makes the columns that ``update`` takes.
        arguments: The keyword arguments of the class; a row among them stands for its metric.
        is_variant: Whether the arguments change how the class keeps its states.
    """

    name: str
    columns: Maker
    arguments: dict[str, Any] = field(default_factory=dict)
    is_variant: bool = False

    def __str__(self) -> str:
        return f"{self.name}{list(self.arguments) if self.is_variant else ''}"

    def make(self) -> Any:
        """Make the metric."""
        module, _, name = self.name.rpartition(".")
        found = getattr(importlib.import_module(f"torchmetrics.{module}".rstrip(".")), name)
        return found(**{key: _made(value) for key, value in self.arguments.items()})


def _made(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _made(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_made(part) for part in value]
    return value.make() if isinstance(value, Row) else value


def _rows(module: str, columns: Maker, names: str, **arguments: Any) -> list[Row]:
    return [Row(f"{module}.{name}", columns, arguments) for name in names.split()]


_THREE = (
    "AUROC Accuracy AveragePrecision ConfusionMatrix EER F1Score HammingDistance JaccardIndex "
    "LogAUC MatthewsCorrCoef NegativePredictiveValue Precision PrecisionRecallCurve ROC Recall "
    "Specificity StatScores"
)
_FIXED = {
    "PrecisionAtFixedRecall": {"min_recall": 0.5},
    "RecallAtFixedPrecision": {"min_precision": 0.5},
    "SensitivityAtSpecificity": {"min_specificity": 0.5},
    "SpecificityAtSensitivity": {"min_sensitivity": 0.5},
    "FBetaScore": {"beta": 2.0},
}
_KINDS: dict[str, tuple[Maker, dict[str, Any]]] = {
    "Binary": (binary, {}),
    "Multiclass": (multiclass, {"num_classes": CLASSES}),
    "Multilabel": (multilabel, {"num_labels": LABELS}),
}

_SQUARED = Row("regression.MeanSquaredError", numbers)

ROWS = [
    *_rows("aggregation", one_number, "CatMetric MaxMetric MeanMetric MinMetric SumMetric"),
    *_rows("aggregation", one_number, "RunningMean RunningSum", window=3),
    *(
        Row(f"classification.{kind}{name}", columns, shared | _FIXED.get(name, {}))
        for kind, (columns, shared) in _KINDS.items()
        for name in [*_THREE.split(), *_FIXED]
    ),
    *_rows("classification", binary, "BinaryCalibrationError BinaryCohenKappa BinaryHingeLoss"),
    *_rows("classification", binary_groups, "BinaryFairness BinaryGroupStatRates", num_groups=2),
    *_rows(
        "classification",
        multiclass,
        "MulticlassCalibrationError MulticlassCohenKappa MulticlassHingeLoss",
        num_classes=CLASSES,
    ),
    *_rows("classification", multiclass_places, "MulticlassExactMatch", num_classes=CLASSES),
    *_rows(
        "classification",
        multilabel,
        "MultilabelCoverageError MultilabelExactMatch MultilabelRankingAveragePrecision "
        "MultilabelRankingLoss",
        num_labels=LABELS,
    ),
    *_rows(
        "regression",
        numbers,
        "ConcordanceCorrCoef ExplainedVariance KendallRankCorrCoef LogCoshError MeanAbsoluteError "
        "MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogError "
        "NormalizedRootMeanSquaredError PearsonCorrCoef R2Score RelativeSquaredError "
        "SpearmanCorrCoef SymmetricMeanAbsolutePercentageError TweedieDevianceScore "
        "WeightedMeanAbsolutePercentageError",
    ),
    *_rows("regression", numbers, "MinkowskiDistance", p=3.0),
    *_rows("regression", numbers, "CriticalSuccessIndex", threshold=1.0),
    *_rows("regression", ensembles, "ContinuousRankedProbabilityScore"),
    *_rows("regression", vectors, "CosineSimilarity", reduction="mean"),
    *_rows("regression", distributions, "JensenShannonDivergence KLDivergence"),
    *_rows("text", tokens, "Perplexity"),
    *_rows(
        "text",
        texts,
        "CharErrorRate EditDistance ExtendedEditDistance MatchErrorRate WordErrorRate "
        "WordInfoLost WordInfoPreserved",
    ),
    *_rows("text", translations, "BLEUScore CHRFScore SacreBLEUScore TranslationEditRate"),
    *_rows("text", translations, "ROUGEScore", rouge_keys="rouge1"),
    *_rows("text", answers, "SQuAD"),
    *_rows(
        "image",
        pictures,
        "ErrorRelativeGlobalDimensionlessSynthesis "
        "RelativeAverageSpectralError RootMeanSquaredErrorUsingSlidingWindow "
        "SpatialCorrelationCoefficient SpectralAngleMapper SpectralDistortionIndex "
        "StructuralSimilarityIndexMeasure UniversalImageQualityIndex",
    ),
    *_rows("image", pictures, "PeakSignalNoiseRatio", data_range=1.0),
    *_rows("image", grey_pictures, "PeakSignalNoiseRatioWithBlockedEffect", data_range=1.0),
    *_rows("image", large_pictures, "VisualInformationFidelity"),
    *_rows(
        "image",
        large_pictures,
        "MultiScaleStructuralSimilarityIndexMeasure",
        kernel_size=3,
        betas=(0.4, 0.6),
        data_range=1.0,
    ),
    *_rows("image", one_picture, "TotalVariation"),
    *_rows(
        "audio",
        sounds,
        "ScaleInvariantSignalDistortionRatio ScaleInvariantSignalNoiseRatio SignalNoiseRatio",
    ),
    *_rows("audio", sounds, "SignalDistortionRatio", filter_length=16),
    *_rows("audio", speakers, "SourceAggregatedSignalDistortionRatio"),
    *_rows("audio", speakers, "PermutationInvariantTraining", metric_func=_distortion),
    *_rows("audio", spectra, "ComplexScaleInvariantSignalNoiseRatio"),
    *_rows(
        "detection", panoptic, "ModifiedPanopticQuality PanopticQuality", things={0, 1}, stuffs={2}
    ),
    *_rows(
        "segmentation",
        masks,
        "DiceScore GeneralizedDiceScore MeanIoU HausdorffDistance",
        num_classes=CLASSES,
        input_format="index",
    ),
    *_rows(
        "clustering",
        clusters,
        "AdjustedMutualInfoScore AdjustedRandScore CompletenessScore FowlkesMallowsIndex "
        "HomogeneityScore MutualInfoScore NormalizedMutualInfoScore RandScore VMeasureScore",
    ),
    *_rows("clustering", points, "CalinskiHarabaszScore DaviesBouldinScore DunnIndex"),
    *_rows(
        "nominal",
        clusters,
        "CramersV PearsonsContingencyCoefficient TheilsU TschuprowsT",
        num_classes=CLASSES,
    ),
    *_rows("nominal", raters, "FleissKappa"),
    *_rows(
        "retrieval",
        queries,
        "RetrievalAUROC RetrievalFallOut RetrievalHitRate RetrievalMAP RetrievalMRR "
        "RetrievalNormalizedDCG RetrievalPrecision RetrievalPrecisionRecallCurve "
        "RetrievalRPrecision RetrievalRecall RetrievalRecallAtFixedPrecision",
    ),
    *_rows("shape", shapes, "ProcrustesDisparity"),
    *_rows("multimodal", faces, "LipVertexError", mouth_map=[0, 1]),
    *_rows("wrappers", numbers, "BootStrapper MinMaxMetric", base_metric=_SQUARED),
    *_rows("wrappers", numbers, "Running", base_metric=_SQUARED, window=2),
    *_rows(
        "wrappers",
        multiclass,
        "ClasswiseWrapper",
        metric=Row(
            "classification.MulticlassRecall", multiclass, {"num_classes": 3, "average": None}
        ),
    ),
    *_rows("wrappers", number_pairs, "MultioutputWrapper", base_metric=_SQUARED, num_outputs=2),
    *_rows(
        "wrappers",
        two_tasks,
        "MultitaskWrapper",
        task_metrics={"click": Row("classification.BinaryAUROC", binary), "price": _SQUARED},
    ),
    *_rows("wrappers", numbers, "LambdaInputTransformer", wrapped_metric=_SQUARED),
    *_rows(
        "wrappers",
        weighted,
        "BinaryTargetTransformer",
        wrapped_metric=Row("classification.BinaryAUROC", binary),
        threshold=0.5,
    ),
]
"""One row for each class."""


def _variants(columns: Maker, names: str, **arguments: Any) -> list[Row]:
    return [Row(name, columns, arguments, is_variant=True) for name in names.split()]


VARIANTS = [
    *_variants(weighted, "aggregation.MeanMetric"),
    *(
        variant
        for columns, names in (
            (vectors, "regression.CosineSimilarity"),
            (distributions, "regression.KLDivergence"),
            (texts, "text.EditDistance"),
            (pictures, "image.StructuralSimilarityIndexMeasure"),
        )
        for variant in _variants(columns, names, reduction="none")
    ),
    *_variants(
        number_pairs,
        "regression.ConcordanceCorrCoef regression.KendallRankCorrCoef "
        "regression.MeanAbsoluteError regression.MeanSquaredError "
        "regression.NormalizedRootMeanSquaredError regression.PearsonCorrCoef "
        "regression.RelativeSquaredError regression.SpearmanCorrCoef",
        num_outputs=2,
    ),
    *(
        variant
        for way in ("range", "std", "l2")
        for variant in _variants(
            numbers, "regression.NormalizedRootMeanSquaredError", normalization=way
        )
    ),
    *_variants(
        multiclass,
        "classification.MulticlassAUROC classification.MulticlassAveragePrecision "
        "classification.MulticlassROC",
        num_classes=CLASSES,
        thresholds=5,
    ),
    *_variants(multiclass, "classification.MulticlassAccuracy", num_classes=CLASSES, top_k=2),
    *_variants(
        multiclass_places,
        "classification.MulticlassAccuracy classification.MulticlassExactMatch",
        num_classes=CLASSES,
        multidim_average="samplewise",
    ),
    *_variants(pictures, "image.PeakSignalNoiseRatio", data_range=(0, 1)),
    *_variants(
        pictures,
        "image.StructuralSimilarityIndexMeasure",
        reduction="sum",
        data_range=1.0,
        return_full_image=True,
    ),
    *_variants(translations, "text.CHRFScore", return_sentence_level_score=True),
    *_variants(texts, "text.ExtendedEditDistance", return_sentence_level_score=True),
    *_variants(translations, "text.TranslationEditRate", return_sentence_level_score=True),
    *_variants(one_hot_masks, "segmentation.MeanIoU", input_format="one-hot"),
    *_variants(
        numbers,
        "wrappers.LambdaInputTransformer",
        wrapped_metric=Row(
            "MetricCollection",
            numbers,
            {"metrics": [_SQUARED, Row("regression.PearsonCorrCoef", numbers)]},
        ),
    ),
]
"""More rows, for settings that change how a class keeps its states."""
