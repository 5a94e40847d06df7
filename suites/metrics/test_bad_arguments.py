"""Bad arguments are refused by name with the value and the sample, and nothing is added."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError, evaluate
from disteval.metrics import (
    AUROC,
    Accuracy,
    Bootstrap,
    CalibrationError,
    ConfusionMatrix,
    CrossEntropy,
    Grouped,
    Mean,
    MetricGroup,
    MultiLabel,
    Perplexity,
    Retrieval,
    SampleRows,
    Segmentation,
    SummableMetric,
    Weighted,
)
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks
from suites.metrics.cases import CASES, Case, alone, assert_same

NAN, Z = math.nan, np.zeros
ADDED = {
    **CASES,
    "weighted": Case(lambda: Weighted(Mean()), ([1.0, 2.0],), {"weights": [1.0, 2.0]}),
    "grouped": Case(lambda: Grouped(Mean()), ([1.0, 2.0],), {"groups": [1, 2]}),
}

BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = [
    ("accuracy", (Z((2, 4)), [0, 1, 2]), {}, ("labels", "(2, 4)", "(3,)")),
    ("accuracy", (Z((2, 4)), [0, 4]), {}, ("labels", "0 to 3", "sample 11", "4")),
    ("accuracy", (Z((2, 4)), [0, -1]), {}, ("labels", "sample 11", "-1")),
    ("accuracy", (Z((2, 4)), [0, 1.5]), {}, ("labels", "sample 11", "1.5")),
    ("accuracy", (Z((2, 4)), [NAN, 1]), {}, ("labels", "sample 10", "nan")),
    ("accuracy", (Z((2, 4)), Z((2, 2))), {}, ("labels", "(2, 2)")),
    ("accuracy", (Z((2, 4)), ["a", "b"]), {}, ("labels", "sample 10", "'a'")),
    ("accuracy", (Z((2, 4)), [0, None]), {}, ("labels", "sample 11", "None")),
    ("accuracy", (Z((2, 3, 4)), [0, 1]), {}, ("predictions", "(2, 3, 4)")),
    ("accuracy", (Z((2, 1)), [0, 0]), {}, ("top-2", "(2, 1)")),
    ("accuracy", (Z((2, 4), complex), [0, 1]), {}, ("predictions", "complex128")),
    ("accuracy", (["a", "b"], ["a", "b"]), {}, ("sample 10", "'a'")),
    ("accuracy", ([0, 0], np.array([0, 2**64 - 1], "uint64")), {}, ("labels", "1844674407370955")),
    ("accuracy", ([0, 1e19], [0, -1]), {}, ("predictions", "sample 11", "1e+19")),
    ("confusion matrix", (Z((2, 3)), [0, 1]), {}, ("(N, 4)", "(2, 3)")),
    ("confusion matrix", (Z((2, 4)), [0]), {}, ("(2, 4)", "(1,)")),
    ("confusion matrix", ([0, 4], [0, 1]), {}, ("predictions", "sample 11", "4")),
    ("confusion matrix", ([0, 1], [0, math.inf]), {}, ("labels", "sample 11", "inf")),
    ("mean", (0.5,), {}, ("values", "()")),
    ("mean", (Z((2, 2)),), {}, ("values", "(2, 2)")),
    ("mean", ([0, 2**53 + 1],), {}, ("values", "sample 11", "9007199254740993")),
    ("mean", (np.array([2**64 - 1], "uint64"),), {}, ("sample 10", "18446744073709551615")),
    ("mean", ([1.0, "b"],), {}, ("values", "sample 10", "'1.0'")),
    ("mean", (np.ma.masked_array([1.0, 2.0], [0, 1]),), {}, ("values", "masked")),
    ("cross-entropy", (Z(2), [0, 1]), {}, ("predictions", "(2,)")),
    ("cross-entropy", (Z((2, 0)), [0, 1]), {}, ("predictions", "(2, 0)")),
    ("cross-entropy", (Z((2, 3)), [0, 3]), {}, ("labels", "0 to 2", "sample 11", "3")),
    ("AUROC", (Z((2, 2)), [0, 1]), {}, ("predictions", "(2, 2)")),
    ("AUROC", (Z(2), [0, 2]), {}, ("labels", "sample 11", "2")),
    ("AUROC", ([0, 2**60], [0, 1]), {}, ("predictions", "sample 11", str(2**60))),
    ("calibration error", (Z((1, 2, 2)), [0]), {}, ("predictions", "(1, 2, 2)")),
    ("calibration error", (Z((1, 0)), [0]), {}, ("predictions", "(1, 0)")),
    ("calibration error", ([0.5, 1.5], [0, 1]), {}, ("predictions", "sample 11", "1.5")),
    ("calibration error", ([0.5, -0.1], [0, 1]), {}, ("predictions", "sample 11", "-0.1")),
    ("calibration error", ([[1, 0], [0.9, 0.9]], [0, 1]), {}, ("sample 11", "1.8")),
    ("calibration error", ([0.5], [2]), {}, ("labels", "sample 10", "2")),
    ("exact match", (["a"], [1]), {}, ("texts", "numbers")),
    ("exact match", (["a"], ["a"], [1]), {}, ("texts", "mask")),
    ("exact match", (["a"], ["a", "b"]), {}, ("(1,)", "(2,)")),
    ("exact match", ("cat", "cat"), {}, ("predictions", "'cat'")),
    ("exact match", (["a", None], ["a", "b"]), {}, ("predictions", "sample 11", "None")),
    ("exact match", (["a", "b"], ["a", 3]), {}, ("labels", "sample 11", "3")),
    ("exact match", (Z((2, 3)), Z((2, 4))), {}, ("(2, 3)", "(2, 4)")),
    ("exact match", (1, 1), {}, ("()",)),
    ("exact match", ([[0], [1]], [[0], [1]], [[1], [2]]), {}, ("mask", "sample 11", "2")),
    ("several labels", (Z((2, 3)), Z((2, 3))), {}, ("predictions", "(N, 4)", "(2, 3)")),
    ("several labels", (Z((2, 4)), Z(2)), {}, ("labels", "(2, 4)", "(2,)")),
    ("several labels", (Z((2, 4)), [[0] * 4, [2] * 4]), {}, ("labels", "sample 11", "2")),
    ("perplexity", (Z((2, 3)), Z((2, 3))), {}, ("predictions", "(2, 3)")),
    ("perplexity", (Z((2, 3, 4)),), {}, ("predictions", "(2, 3, 4)")),
    ("perplexity", (Z((2, 3, 0)), Z((2, 3))), {}, ("predictions", "(2, 3, 0)")),
    ("perplexity", (Z((2, 3, 4)), Z(6)), {}, ("labels", "(2, 3)", "(6,)")),
    ("perplexity", (Z((2, 2, 4)), [[0, 1], [0, 4]]), {}, ("labels", "sample 11", "4")),
    ("perplexity", (Z((1, 2)), None, [[1]]), {}, ("mask", "(1, 2)", "(1, 1)")),
    ("perplexity", (Z((2, 2)), None, [[1, 1], [1, 2]]), {}, ("mask", "sample 11", "2")),
    ("perplexity", ([[0.0, 0.0], [0.0, 2.5]],), {}, ("log-prob", "sample 11", "2.5")),
    ("perplexity", (Z((2, 2)),), {"byte_counts": [1]}, ("byte_counts", "[1]")),
    ("perplexity", (Z((2, 2)),), {"byte_counts": [1, -1]}, ("byte_counts", "-1")),
    ("perplexity", (Z((2, 2)),), {"byte_counts": [1, 0.5]}, ("byte_counts", "sample 11", "0.5")),
    ("regression", (Z((2, 2)), Z(2)), {}, ("predictions", "(2, 2)")),
    ("regression", (Z(2), Z((2, 3))), {}, ("labels", "(2, 3)")),
    ("regression", (Z(2), Z(3)), {}, ("(2,)", "(3,)")),
    ("regression", (Z(2), [0, 2**53 + 1]), {}, ("labels", "sample 11", str(2**53 + 1))),
    ("retrieval", (Z(2), Z(2)), {}, ("predictions", "(2,)")),
    ("retrieval", (Z((2, 3)), Z((2, 4))), {}, ("labels", "(2, 3)", "(2, 4)")),
    ("retrieval", (Z((2, 2)), [[0, 1], [0, 0]]), {}, ("sample 11", "relevant")),
    ("retrieval", (Z((2, 2)), [[0, 1]] * 2, [[1, 1], [1, 0]]), {}, ("sample 11", "relevant")),
    ("retrieval", (Z((2, 2)), [[0, 1], [1, -1]]), {}, ("labels", "sample 11", "-1.0")),
    ("retrieval", (Z((2, 2)), [[0, 1], [1, NAN]]), {}, ("labels", "sample 11", "nan")),
    ("segmentation", (Z((2, 3)), Z((2, 4))), {}, ("(2, 3)", "(2, 4)")),
    ("segmentation", (Z((2, 3, 4)), Z((2, 4))), {}, ("(2, 3, 4)", "(N, 4, …)")),
    ("segmentation", (0, 0), {}, ("()",)),
    ("segmentation", ([[0, 1], [0, 4]], Z((2, 2))), {}, ("predictions", "sample 11", "4")),
    ("segmentation", (Z((2, 2)), [[0, 1], [0, 4]]), {}, ("labels", "sample 11", "4")),
    ("weighted", ([1.0, 2.0],), {"weights": [1.0, -1.0]}, ("weights", "sample 11", "-1.0")),
    ("weighted", ([1.0, 2.0],), {"weights": [1.0, math.inf]}, ("weights", "sample 11", "inf")),
    ("weighted", ([1.0, 2.0],), {"weights": [1, 2.0**257]}, ("weights", "sample 11", "e+77")),
    ("weighted", ([1.0, 2.0],), {"weights": [1.0, 5e-324]}, ("weights", "sample 11", "5e-324")),
    ("weighted", ([1.0, 2.0],), {"weights": [1.0]}, ("weights", "1 values", "2 samples")),
    ("weighted", ([1.0, 2.0],), {"weights": [[1.0, 2.0]]}, ("weights", "(1, 2)")),
    ("weighted", ([1.0, 2.0],), {"weights": [1.0, NAN]}, ("weights", "sample 11")),
    ("grouped", ([1.0, 2.0],), {"groups": [1.5, 2.0]}, ("group", "1.5")),
    ("grouped", ([1.0, 2.0],), {"groups": [None, 1]}, ("group", "None")),
    ("grouped", ([1.0, 2.0],), {"groups": [("a", 1), ("b", 2)]}, ("group", "('a', 1)")),
    ("grouped", ([1.0, 2.0],), {"groups": "ab"}, ("groups", "'ab'")),
    ("grouped", ([1.0, 2.0],), {"groups": {"a": 1}}, ("groups", "'a'")),
    ("grouped", ([1.0, 2.0],), {"groups": [b"\xff", b"a"]}, ("group", r"b'\xff'")),
    ("grouped", ([1.0, 2.0],), {"groups": ["a"]}, ("groups", "1 values", "2 samples")),
]
WRONG: list[tuple[Any, tuple[str, ...]]] = [
    (None, ("None",)),
    ({"logits": [0.5]}, ("dict",)),
    ({0.5, 0.1}, ("set",)),
    (iter([0.5]), ("list_iterator",)),
    ([[1.0, 2.0], [3.0]], ("sample 11", "1", "2")),
]
"""What is no array of numbers for any metric."""
ARRAYS = [
    (name, (wrong,) * len(CASES[name].args), {}, ("values" if name == "mean" else "", *words))
    for name in CASES
    for wrong, words in WRONG
    if not name.startswith("entries") and not (name == "perplexity" and wrong is None)
]


@pytest.mark.parametrize(("name", "args", "named", "words"), [*BAD, *ARRAYS])
def test_a_bad_batch_is_refused_and_adds_nothing(
    name: str, args: Any, named: Any, words: tuple[str, ...]
) -> None:
    make, good, more = ADDED[name]
    metric = make()
    metric.dist_backend = "non_dist"
    first = slice(2) if name in ("AUROC", "average precision") else slice(1)
    size = len(np.asarray(good[0])[first])
    kept = [np.asarray(array)[first] for array in good]
    kept_named = {key: np.asarray(array)[first] for key, array in more.items()}
    if name in ("AUROC", "average precision"):
        kept[1] = np.array([0, 1])
    metric.add(*kept, **kept_named, ids=np.arange(size))
    with pytest.raises(UsageError) as caught:
        metric.add(*args, **named, ids=[10, 11])
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert_same(metric.compute(size), alone(make(), kept, kept_named))


def test_without_ids_the_row_is_named_and_in_an_evaluation_the_sample() -> None:
    with pytest.raises(UsageError, match=r"row 1 .* 7\b"):
        Accuracy().add(Z((2, 3)), [0, 7])
    with pytest.raises(RankError, match=r"sample 13 has 7"):
        labels = np.where(np.arange(20) == 13, 7, 0)
        evaluate(lambda x: x, (Z((20, 3)), labels), {"a": Accuracy()}, "non_dist", 8)
    tokens = Mean()
    with pytest.raises(UsageError, match=r"sample 5\b"):
        tokens.add([1.0, 2.0, 3.0, NAN], ids=SampleRows([4, 5], [1, 3]))


NANS = {name: case for name, case in CASES.items() if case.args[0].dtype.kind == "f"}
NANS["exact match"] = Case(CASES["exact match"].make, (Z((3, 2)), Z((3, 2))), {})
NANS["segmentation"] = Case(CASES["segmentation"].make, (Z((3, 4, 2)), Z((3, 2))), {})


@pytest.mark.parametrize("name", [name for name in NANS if not name.startswith("entries")])
def test_nan_is_refused_by_every_metric_which_counts_the_rows(name: str) -> None:
    """One policy: a score that is NaN is neither right nor wrong."""
    make, args, named = NANS[name]
    args = tuple(array[:3].copy() for array in args)
    args[0].reshape(3, -1)[1, 0] = NAN
    named = {key: array[:3] for key, array in named.items()}
    metric = make()
    with pytest.raises(UsageError) as caught:
        metric.add(*args, **named, ids=[7, 8, 9])
    for word in (type(metric).__name__, "1 of 3", "sample 8"):
        assert word in str(caught.value)
    samples = {"x": args[0], "label": args[-1], **named}

    def rank(backend: ThreadsDist) -> Any:
        return evaluate(lambda batch: batch["x"], samples, {"m": make()}, backend, 2)

    assert_each_raised(run_ranks(2, rank), RankError, "sample 1")


def test_nan_does_not_matter_where_nothing_counts() -> None:
    search = Retrieval(1, dist_backend="non_dist")
    assert search([[1.0, 3.0, NAN]], [[1, 0, NAN]], [[1, 1, 0]])["mrr"] == 0.5
    tokens = Perplexity(dist_backend="non_dist")
    assert tokens([[-1.0, NAN]], mask=[[1, 0]])["cross_entropy"] == 1.0
    places = Segmentation(2, np.uint8(255), dist_backend="non_dist")
    assert places([[[0.0, NAN], [1.0, NAN]]], [[1, 255]])["accuracy"] == 1.0


@pytest.mark.parametrize("make", [CrossEntropy, Perplexity])
def test_probabilities_are_no_logits(make: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 5, 6))
    odds = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    labels = Z((4, 5), int)
    if make is CrossEntropy:
        logits, odds, labels = logits[:, 0], odds[:, 0], labels[:, 0]
        with pytest.raises(UsageError, match="probabilities"):
            make().add([[0.25, 0.75], [0.5, 0.5]], labels[:2])
    for wrong in (odds, odds.astype(np.float32), odds.astype(np.float16)):
        with pytest.raises(UsageError, match="refuse_probabilities=False"):
            make().add(wrong, labels)
    with pytest.raises(UsageError, match="probabilities"):
        make().add(odds[:1, ...], labels[:1])
    alone(make(refuse_probabilities=False), (odds,), {"labels": labels})
    expected = alone(make(), (logits,), {"labels": labels})["cross_entropy"]
    logs = alone(make(), (np.log(odds),), {"labels": labels})["cross_entropy"]
    assert logs == pytest.approx(expected)
    mixed = np.concatenate([odds, logits])  # of which some rows happen to sum to 1
    make().add(mixed, np.concatenate([labels, labels]))
    make().add(logits[:0], labels[:0])


SETTINGS: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: Accuracy(topk=0), ("topk", "0")),
    (lambda: Accuracy(topk=(1, 2.0)), ("topk", "2.0")),  # type: ignore[arg-type]
    (lambda: Accuracy(topk=()), ("topk", "empty")),
    (lambda: Accuracy(topk=(1, 1)), ("topk", "1, 1")),
    (lambda: Accuracy(topk=np.array(1)), ("topk", "array(1)")),  # type: ignore[arg-type]
    (lambda: Accuracy(thrs=(0.101, 0.102)), ("thrs", "0.101, 0.102")),
    (lambda: Accuracy(thrs="0.5"), ("thrs", "'0'")),  # type: ignore[arg-type]
    (lambda: Accuracy(thrs=NAN), ("thrs", "nan")),
    (lambda: Accuracy(counts="no"), ("counts", "'no'")),  # type: ignore[arg-type]
    (lambda: Accuracy(dataset_meta="classes"), ("dataset_meta", "'classes'")),  # type: ignore[arg-type]
    (lambda: Mean(dist_collect_mode="zip"), ("'zip'", "'unzip'", "'cat'")),  # type: ignore[arg-type]
    (lambda: CalibrationError(0), ("bins", "0")),
    *[
        (lambda n=n: ConfusionMatrix(n), ("num_classes", repr(n)))  # type: ignore[misc]
        for n in (0, -1, 2.0, True, "3", None)
    ],
    *[
        (lambda thrs=thrs: MultiLabel(2, thrs), ("thr",))  # type: ignore[misc]
        for thrs in (None, (), (0.5, None), "0.5", NAN, True, (0.501, 0.502))
    ],
    (lambda: Perplexity(ignore_label=True), ("ignore_label", "True")),
    (lambda: Perplexity(shift=1), ("shift", "1")),  # type: ignore[arg-type]
    (lambda: CrossEntropy(refuse_probabilities=None), ("refuse_probabilities", "None")),  # type: ignore[arg-type]
    *[
        (lambda topk=topk: Retrieval(topk), ("topk",))  # type: ignore[misc]
        for topk in (0, (1, 1), (1, 2.5), True)
    ],
    (lambda: Segmentation(3, ignore_label="255"), ("ignore_label", "'255'")),  # type: ignore[arg-type]
    (lambda: Segmentation(3, ignore_label=1.5), ("ignore_label", "1.5")),  # type: ignore[arg-type]
    (lambda: Bootstrap(Mean(), resamples=0), ("resamples", "0")),
    (lambda: Bootstrap(Mean(), confidence=95), ("confidence", "95")),
    (lambda: Bootstrap(Mean(), seed=-1), ("seed", "-1")),
    (lambda: Grouped(Mean(), max_groups=0), ("max_groups", "0")),
    *[
        (lambda kind=kind, wrong=wrong: kind(wrong), (kind.__name__, "Accuracy()"))  # type: ignore[misc]
        for kind in (Weighted, Grouped, Bootstrap)
        for wrong in (AUROC(), Accuracy, None)
    ],
    *[
        (lambda kind=kind, inner=inner: kind(inner), ("Grouped(Bootstrap(Weighted(metric)))",))  # type: ignore[misc]
        for kind, inner in (
            (Weighted, Weighted(Mean())),
            (Weighted, Grouped(Mean())),
            (Weighted, Bootstrap(Mean())),
            (Bootstrap, Grouped(Mean())),
            (Bootstrap, Bootstrap(Mean())),
            (Grouped, Grouped(Mean())),
        )
    ],
]


@pytest.mark.parametrize(("make", "words"), SETTINGS)
def test_a_bad_setting_is_refused_when_the_metric_is_made(
    make: Callable[[], Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def share_correct(outputs: Any, batch: Any) -> Any:
    return outputs == batch[1]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Mean, ("'own'", "Mean()")),
        (share_correct, ("'own'", "share_correct", "Mean()", "update=", "docs/extend.md")),
        (lambda outputs, batch: outputs, ("'own'", "Mean()", "update=", "docs/extend.md")),
        (0.5, ("'own'", "0.5", "from_torchmetrics")),
    ],
)
def test_what_is_no_metric_is_refused_with_what_to_give_instead(
    metric: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(lambda x: x, (Z(4), Z(4)), {"own": metric}, "non_dist")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_group_refuses_one_metric_under_two_names() -> None:
    mean = Mean()
    with pytest.raises(UsageError, match="'a' and 'b'"):
        MetricGroup({"a": mean, "b": mean}, "non_dist")


class Inexact(SummableMetric):
    """A metric whose sums are not those of any other order."""

    def __init__(self, sums: Any) -> None:
        super().__init__(dist_backend="non_dist")
        self._sums = sums

    def add(self, values: Any) -> None:
        self._append(np.asarray(values))

    def sums_of(self, column: Any) -> Any:
        return self._sums

    def from_sums(self, sums: Any, size: int) -> Any:
        return sums


@pytest.mark.parametrize("sums", [np.array([0.1]), np.array(3), 3, np.array([True])])
def test_sums_that_are_no_arrays_of_integers_are_refused(sums: Any) -> None:
    with pytest.raises(RankError, match="sums_of") as caught:
        Inexact(sums)([1, 2])
    assert str(getattr(sums, "dtype", "int")) in str(caught.value)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", [1, 2])
def test_no_samples_are_one_kind_of_error_for_every_metric(name: str, world: int) -> None:
    make, args, named = CASES[name]
    if name.startswith("entries"):
        pytest.skip("the list of no entries is a result")

    def rank(backend: ThreadsDist) -> Any:
        metric = make()
        metric.dist_backend = backend
        if backend.rank:
            metric.add(*(array[:0] for array in args), **{k: v[:0] for k, v in named.items()})
        return metric.compute()

    def evaluated(backend: ThreadsDist) -> Any:
        return evaluate(
            lambda batch: batch["x"],
            {"x": args[0][:0], "label": args[-1][:0]} | {k: v[:0] for k, v in named.items()},
            {"m": make()},
            backend,
        )

    assert_each_raised(
        [*run_ranks(world, rank), *run_ranks(world, evaluated)], UsageError, "no samples"
    )


@pytest.mark.parametrize("size", [-1, 2.5, "3", True, 4])
@pytest.mark.parametrize("name", ["accuracy", "entries"])
def test_a_size_that_can_not_be_is_an_error(name: str, size: Any) -> None:
    metric = CASES[name].make()
    metric.dist_backend = "non_dist"
    metric.add(*(array[:3] for array in CASES[name].args))
    with pytest.raises(UsageError, match=r"size.*") as caught:
        metric.compute(size)
    assert (repr(size) if size != 4 else "1 are missing") in str(caught.value)
