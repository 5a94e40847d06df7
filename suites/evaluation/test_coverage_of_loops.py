"""A loop of one's own gets a proof of coverage, or an error on every rank that names samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval import Coverage, CoverageError, UnknownBackendError, UsageError, frames
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import Counting, run_ranks, values


def certify(shards: list[Any], size: int | None, *settings: Any) -> list[Any]:
    """Count one shard on each rank, and return what each rank's certify returns or raises."""

    def rank(backend: ThreadsDist) -> Any:
        coverage = Coverage(size, backend)
        coverage.count(shards[backend.rank])
        return coverage.certify(*settings)

    return run_ranks(len(shards), rank)


def refused(outcomes: list[Any]) -> str:
    """Return the message of the CoverageError that every rank raised."""
    assert all(isinstance(outcome, CoverageError) for outcome in outcomes), outcomes
    (message,) = set(map(str, outcomes))
    return message


def test_a_size_that_no_id_reaches_is_refused() -> None:
    with pytest.raises(UsageError, match=str(2**63)):
        Coverage(2**63)
    assert str(2**63 - 2) in refused(certify([[0]], 2**63 - 1))


def test_missing_repeated_and_foreign_samples_are_named_with_ranks() -> None:
    counted = [[0, 1, 1], [5, 0], [6]]
    missing, repeated, on_ranks, foreign = "(2, 3, 4)", "(0, 1)", "0 on ranks 0, 1", "(6)"
    found = refused(certify(counted, 6))
    assert all(each in found for each in (missing, repeated, on_ranks, foreign))
    found = refused(certify(counted, 6, "allowed"))
    assert missing in found and foreign in found and repeated not in found


def test_a_stream_has_no_gap() -> None:
    found = refused(certify([[0, 2], [2]], None))
    assert "missing (1)" in found and "once (2)" in found


def test_a_whole_proof_sends_one_block_and_no_ids() -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        coverage = Coverage(300_000, counting)
        coverage.count(np.arange(backend.rank, 300_000, 2))
        assert coverage.certify().size == 300_000
        return counting.sent

    assert values(run_ranks(2, rank)) == [[frames.BLOCK_BYTES]] * 2


def test_certify_again_and_after_more_batches_and_after_reset() -> None:
    def rank(backend: ThreadsDist) -> Any:
        coverage = Coverage(None, backend)
        sizes = []
        for start in (0, 0, 4):
            if start or not sizes:
                coverage.count(start + np.arange(backend.rank, 4, 2))
            sizes.append(coverage.certify().size)
        coverage.reset()
        coverage.count(backend.rank)
        return [*sizes, coverage.certify().size]

    assert values(run_ranks(2, rank)) == [[4, 4, 8, 2]] * 2


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (lambda rank: (10 + rank, "forbidden"), r"\[10, 11\]"),
        (lambda rank: (None if rank else 10, "forbidden"), r"\[10, None\]"),
        (lambda rank: (10, "forbidden" if rank else "allowed"), r"'allowed', 'forb"),
    ],
)
def test_ranks_that_disagree_all_say_so(settings: Callable[[int], Any], found: str) -> None:
    def rank(backend: ThreadsDist) -> Any:
        size, repeats = settings(backend.rank)
        return Coverage(size, backend).certify(repeats)

    for outcome in run_ranks(2, rank):
        with pytest.raises(UsageError, match=found):
            raise outcome  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (np.array([0.0, 1.0]), "ids.*float64"),
        ([True, False], r"ids.*\bbool\b"),
        (["0", "1"], "not of <U1"),
        ([0, -1], r"is -1\b"),
        (np.array([2**63], np.uint64), "9223372036854775808"),
        (np.zeros((2, 1), int), r"\(2, 1\)"),
        (None, "not None"),
        ({"id": 1}, r"\bdict\b"),
        (iter([1]), "list_iterator"),
    ],
)
def test_ids_of_another_kind_are_refused_and_not_counted(ids: Any, found: str) -> None:
    coverage = Coverage(0, "non_dist")
    with pytest.raises(UsageError, match=found):
        coverage.count(ids)
    assert coverage.certify().counted == 0


@pytest.mark.parametrize("ids", [0, np.int32(0), [0], range(1), (0,), np.zeros(1, np.uint8)])
def test_integers_of_every_kind_are_counted(ids: Any) -> None:
    coverage = Coverage(1, "non_dist")
    coverage.count([])
    coverage.count(ids)
    assert coverage.certify().counted == 1


def test_arguments_are_checked_when_they_are_given() -> None:
    with pytest.raises(UsageError, match=r"size.*-1"):
        Coverage(-1)
    with pytest.raises(UnknownBackendError, match="torch_cpu"):
        Coverage(1, "torch_cqu")
    with pytest.raises(UsageError, match="'yes'"):
        Coverage(0, "non_dist").certify("yes")  # type: ignore[arg-type]
