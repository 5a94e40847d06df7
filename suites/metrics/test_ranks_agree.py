"""Ranks whose metrics or settings differ all get one error, and so does a failure on one rank."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from disteval import RankError, UsageError
from disteval.metrics import (
    AUROC,
    Accuracy,
    Grouped,
    Mean,
    MetricGroup,
    Perplexity,
    SummableMetric,
    Weighted,
)

from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.properties.cases import Entries


class Powers(SummableMetric):
    """A metric of one's own, whose sums have one entry for each power, kept under private names."""

    def __init__(self, *powers: int, weights: Any = None, **named: Any) -> None:
        super().__init__(**named)
        self._powers = powers
        self._weights = weights

    def add(self, values: Any, *, ids: Any = None) -> None:
        self._append(np.asarray(values, np.int64), ids)

    def sums_of(self, column: npt.NDArray[Any]) -> Any:
        return np.array([(column**power).sum() for power in self._powers])

    def from_sums(self, sums: Any, size: int) -> Any:
        return dict(zip(self._powers, sums.tolist(), strict=True))


class Public(Powers):
    """A metric that gets its setting after it was made."""

    scale = 1


def scaled(rank: int) -> Public:
    metric = Public(1)
    metric.scale = (2, 3)[rank > 0]
    return metric


class Counted(Entries):
    """Another metric of entries."""


DIFFERENT: list[tuple[Callable[[int], Any], tuple[str, ...]]] = [
    (lambda r: Accuracy(topk=1 + (r == 1)), ("(1,)", "(2,)")),
    (lambda r: Accuracy(thrs=(0.1, 0.2)[r > 0]), ("(0.1,)", "(0.2,)")),
    (lambda r: Mean(dist_collect_mode=("cat", "unzip")[r > 0]), ("'cat'", "'unzip'")),  # type: ignore[arg-type]
    (lambda r: Perplexity(shift=r > 0), ("shift=False", "shift=True")),
    (lambda r: (Accuracy, Mean)[r > 0](), ("Accuracy(", "Mean(")),
    (lambda r: Weighted((Accuracy(), Mean())[r > 0]), ("Weighted(Accuracy(", "Weighted(Mean(")),
    (lambda r: Grouped(Powers(1 + (r > 0))), ("Grouped(Powers(", "(1,)", "(2,)")),
    (lambda r: (Entries, AUROC)[r > 0](), ("Entries(", "AUROC(")),
    (lambda r: (Entries, Counted)[r > 0](), ("Entries(", "Counted(")),
    (lambda r: Powers(*range(1 + (r == 1))), ("Powers(", "(0,)", "(0, 1)")),
    (lambda r: Powers(1, weights=np.array([1.0, 1 + r])), ("Powers(", "float64 array")),
    (lambda r: Powers(1, weights=np.arange(99.0) + r), ("Powers(", "float64 array")),
    (lambda r: Powers(1, weights={"a": [r > 0]}), ("Powers(", "False", "True")),
    (scaled, ("Public(", "scale=2", "scale=3")),
]


@pytest.mark.parametrize(("made", "words"), DIFFERENT)
def test_ranks_with_other_settings_all_get_one_error_that_names_both(
    made: Callable[[int], Any], words: tuple[str, ...]
) -> None:
    def alone(backend: Any) -> Any:
        metric = made(backend.rank)
        metric.dist_backend = backend
        return metric.compute()

    def together(backend: Any) -> Any:
        return MetricGroup({"a": Mean(), "m": made(backend.rank)}, backend).compute()

    for function in (alone, together):
        outcomes = run_ranks(3, function)
        assert {type(outcome) for outcome in outcomes} == {UsageError}
        assert len({*map(str, outcomes)}) == 1
        assert all(word in str(outcomes[0]) for word in ("rank 0", *words)), outcomes[0]


@pytest.mark.parametrize("made", [Accuracy, lambda: Weighted(Accuracy())])
def test_a_setting_that_one_rank_changes_after_its_first_sample_is_an_error_on_all(
    made: Callable[[], Any],
) -> None:
    def rank(backend: Any) -> Any:
        metric = made()
        metric.dist_backend = backend
        weights = {"weights": [1.0, 1.0]} if isinstance(metric, Weighted) else {}
        metric.add(np.eye(2), [0, 1], **weights)
        same = metric.compute()
        if backend.rank:
            getattr(metric, "metric", metric).thrs = (0.5,)
        with pytest.raises(UsageError, match=r"None,.*0\.5,"):
            metric.compute()
        return same

    assert run_ranks(2, rank) == [{"top1": 1.0}] * 2


def test_a_metric_and_a_group_on_different_ranks_are_an_error_on_both() -> None:
    def rank(backend: Any) -> Any:
        metric: Any = Mean(dist_backend=backend)
        return (MetricGroup({"a": metric}, backend) if backend.rank else metric).compute()

    assert {type(outcome) for outcome in run_ranks(2, rank)} == {UsageError}


def test_sums_of_different_shapes_are_never_broadcast() -> None:
    class Growing(Powers):
        """A metric whose sums have a shape that depends on the rows."""

        def sums_of(self, column: npt.NDArray[Any]) -> Any:
            return np.full(len(column), column.sum())

        def from_sums(self, sums: Any, size: int) -> Any:
            return sums.tolist()

    def rank(backend: Any) -> Any:
        metric = Growing(dist_backend=backend)
        metric.add([1] * (1 + backend.rank))
        return metric.compute()

    outcomes = run_ranks(2, rank)
    assert_each_raised(outcomes, UsageError, "(1,)", "(2,)")
    metric = Growing()
    metric.add([1])
    with pytest.raises(UsageError, match=r"\(1,\).*\(2,\)"):
        metric.add([1, 1])


@pytest.mark.parametrize("guilty", [0, 2])
def test_entries_that_can_not_travel_are_an_error_on_every_rank(guilty: int) -> None:
    class Kept(Entries):
        def add(self, entries: Any, labels: Any = None, *, ids: Any = None) -> None:
            self._extend(entries, ids)

    def rank(backend: Any) -> Any:
        metric = Kept(dist_backend=backend)
        metric.add([lambda: None] if backend.rank == guilty else [1])
        with pytest.raises(RankError) as caught:
            metric.compute()
        metric.reset()
        metric.add([backend.rank])
        return caught.value.rank, metric.compute()

    assert values(run_ranks(3, rank)) == [(guilty, [0, 1, 2])] * 3


def test_a_rank_that_can_not_sum_is_an_error_on_every_rank() -> None:
    class Failing(Powers):
        def sums_of(self, column: npt.NDArray[Any]) -> Any:
            if len(column) == 2:
                raise ArithmeticError("not two")
            return super().sums_of(column)

    def padded(backend: Any) -> Any:
        metric = Failing(1, dist_backend=backend)
        # Rank 1's padding is a seven, without which it has two rows.
        metric.add([1, 1, 7] if backend.rank else [1, 1, 1])
        return metric.compute(5)

    def repeated(backend: Any) -> Any:
        metric = Failing(1, dist_backend=backend)
        metric.add([1, 7, 2], ids=[1 + 3 * backend.rank, 7, 2 + 3 * backend.rank])
        return metric.compute()

    outcomes = [*run_ranks(2, padded), *run_ranks(2, repeated)]
    assert_each_raised(outcomes, RankError, "not two", guilty=1)


class FromDevice(Powers):
    """A metric whose rows are on a device and can't be read while the device is broken."""

    broken = True

    def add(self, rows: Any, *, ids: Any = None) -> None:
        self._append(lambda: self._bring(rows), ids, length=len(rows))

    def _bring(self, rows: Any) -> npt.NDArray[Any]:
        if self.broken:
            raise OSError("the device is lost")
        return np.asarray(rows)


def test_rows_that_can_not_be_had_from_a_device_are_not_forgotten() -> None:
    metric = FromDevice(0, dist_backend="non_dist")
    metric.add([5, 6, 7])
    for _ in range(2):
        with pytest.raises(RankError, match="OSError"):
            metric.compute()
    metric.broken = False
    assert metric.compute() == {0: 3}


def test_ranks_that_ask_for_different_sizes_are_told() -> None:
    def rank(backend: Any) -> Any:
        metric = Entries(dist_backend=backend)
        metric.add([backend.rank])
        return metric.compute(backend.rank)

    assert_each_raised(run_ranks(3, rank), UsageError, "[0, 1, 2]")
