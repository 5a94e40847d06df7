"""Which of torchmetrics' classes are tried with `from_torchmetrics`, with what, and on which data.

One row is one class. A row's data are drawn from a fixed seed: columns with one entry for each
sample, as the class's ``update`` takes them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from suites.arrays.torchmetrics_columns import (
    _THREE,
    CLASSES,
    LABELS,
    Maker,
    _distortion,
    answers,
    binary,
    binary_groups,
    clusters,
    distributions,
    ensembles,
    faces,
    grey_pictures,
    large_pictures,
    masks,
    multiclass,
    multiclass_places,
    multilabel,
    number_pairs,
    numbers,
    one_hot_masks,
    one_number,
    one_picture,
    panoptic,
    pictures,
    points,
    queries,
    raters,
    shapes,
    sounds,
    speakers,
    spectra,
    texts,
    tokens,
    translations,
    two_tasks,
    vectors,
    weighted,
)


@dataclass(frozen=True)
class Row:
    """A class that is tried.

    Attributes:
        name: The module below torchmetrics and the class, as ``regression.R2Score``.
        columns: Makes the columns that ``update`` takes.
        arguments: The keyword arguments of the class; a row among them stands for its metric.
        shown: Whether the page shows the arguments.
    """

    name: str
    columns: Maker
    arguments: dict[str, Any] = field(default_factory=dict)
    shown: bool = False

    def __str__(self) -> str:
        return f"{self.name}{self.settings if self.shown else ''}"

    @property
    def settings(self) -> str:
        """The arguments as the page shows them."""
        shown = (f"{key}={self._spelled(value)}" for key, value in self.arguments.items())
        return f"({', '.join(shown)})"

    @staticmethod
    def _spelled(value: Any) -> str:
        return value.name.rpartition(".")[2] if isinstance(value, Row) else repr(value)

    def make(self) -> Any:
        """Make the metric."""
        module, _, name = self.name.rpartition(".")
        found = getattr(importlib.import_module(f"torchmetrics.{module}".rstrip(".")), name)
        return found(**{key: self._made(value) for key, value in self.arguments.items()})

    @staticmethod
    def _made(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: Row._made(part) for key, part in value.items()}
        if isinstance(value, list):
            return [Row._made(part) for part in value]
        return value.make() if isinstance(value, Row) else value


def _rows(module: str, columns: Maker, names: str, **arguments: Any) -> list[Row]:
    return [Row(f"{module}.{name}", columns, arguments) for name in names.split()]


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
    return [Row(name, columns, arguments, shown=True) for name in names.split()]


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

_NETWORK = "needs a network that is downloaded"
_TORCHVISION = "needs torchvision"
NOT_TRIED = {
    "audio.DeepNoiseSuppressionMeanOpinionScore": _NETWORK,
    "audio.NonIntrusiveSpeechQualityAssessment": _NETWORK,
    "audio.PerceptualEvaluationSpeechQuality": "needs pesq",
    "audio.ShortTimeObjectiveIntelligibility": "needs pystoi",
    "audio.SpeechReverberationModulationEnergyRatio": "needs gammatone and torchaudio",
    "clustering.ClusterAccuracy": "needs torch_linear_assignment",
    "detection.CompleteIntersectionOverUnion": _TORCHVISION,
    "detection.DistanceIntersectionOverUnion": _TORCHVISION,
    "detection.GeneralizedIntersectionOverUnion": _TORCHVISION,
    "detection.IntersectionOverUnion": _TORCHVISION,
    "detection.MeanAveragePrecision": "needs torchvision and pycocotools",
    "image.ArniqaMetric": _NETWORK,
    "image.DeepImageStructureAndTextureSimilarity": _NETWORK,
    "image.FrechetInceptionDistance": _NETWORK,
    "image.LearnedPerceptualImagePatchSimilarity": _NETWORK,
    "image.MemorizationInformedFrechetInceptionDistance": _NETWORK,
    "image.PerceptualPathLength": _NETWORK,
    "image.QualityWithNoReference": _TORCHVISION,
    "image.SpatialDistortionIndex": _TORCHVISION,
    "multimodal.CLIPImageQualityAssessment": _NETWORK,
    "multimodal.CLIPScore": _NETWORK,
    "text.BERTScore": _NETWORK,
    "text.InfoLM": _NETWORK,
    "video.VideoMultiMethodAssessmentFusion": "needs vmaf_torch",
    "wrappers.FeatureShare": "is a MetricCollection; give each of its metrics by itself",
    "wrappers.MetricTracker": "is no metric; give the metric that it tracks",
}
"""Classes that are not tried, and why."""
