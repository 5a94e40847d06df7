"""Shards that ranks borrow have the results of one rank that reads them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, HarnessError, RankError, UsageError, evaluate, get_dist_backend
from disteval.coverage import Certificate, certify
from disteval.data import ShardedStream
from disteval.data.streams import SHARD_BITS
from disteval.evaluation.dealing import Dealing
from disteval.evaluation.pieces import Piece, Shards
from disteval.evaluation.work import Work
from disteval.metrics import AUROC, Accuracy, Mean
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks
from suites.resume.same import assert_as_on_one_rank


def stream_of(lengths: list[int]) -> ShardedStream:
    rng = np.random.default_rng(len(lengths))
    shards = [[(rng.random(3), n % 3) for n in range(length)] for length in lengths]
    return ShardedStream(range(len(shards)), lambda shard: iter(shards[shard]))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=7),
    world=st.integers(1, 4),
    given_=st.sampled_from(
        [
            {"mode": "batches"},
            {"mode": "batches", "fixed_shape": False, "workers": 1},
            {"max_tokens": 9, "length": lambda sample: sample[1] + 1},
        ]
    ),
    sums_alone=st.booleans(),
)
def test_leases_of_shards_have_the_bits_of_one_rank(
    lengths: list[int], world: int, given_: dict[str, Any], sums_alone: bool
) -> None:
    def predict(x: Any) -> Any:
        return x + len(x) / 1e3 + x.max() / 7  # it depends on the batch

    def rank(backend: Any, schedule: Any) -> Any:
        metrics: dict[str, Any] = {"a": Accuracy(counts=True), "m": Mean(), "auroc": AUROC()}
        updates = {
            "m": lambda outputs, batch: (outputs[:, 0],),
            "auroc": lambda outputs, batch: (outputs[:, 1], batch[1] > 1),
        }
        if sums_alone:
            del metrics["auroc"], updates["auroc"]
        try:
            found = evaluate(
                predict, stream_of(lengths), metrics, backend, 4, update=updates,
                schedule=schedule, **given_,
            )  # fmt: skip
        except HarnessError as error:
            return str(error)
        return {"size": found.size, "padded": found.padded, **found.metrics}

    assert_as_on_one_rank(world, rank, folds=sums_alone)


def pieces(*lengths: int) -> list[Piece]:
    """Return a committed lease for each shard."""
    found = []
    for shard, length in enumerate(lengths):
        ids = (shard << SHARD_BITS) + np.arange(length)
        found.append(Piece(shard, shard + 1, certify(ids), {shard: length}))
    return found


def test_coverage_of_shards_is_proved() -> None:
    work = Work(
        lambda x: x, stream_of([4, 0, 6]), {}, get_dist_backend("non_dist"), Dealing(4), None,
        None, None, False, is_compared=False,
    )  # fmt: skip
    shards, whole = Shards(work), pieces(4, 0, 6)
    assert shards.prove(whole) == (10, 0)
    short = whole[2]._replace(certificate=Certificate(5, whole[2].certificate.mixed))
    other = whole[2]._replace(certificate=certify(np.arange(6)))
    for wrong, said in [(short, "9 were counted of 10; .* shards 2 to 2"), (other, " 2 to 2")]:
        with pytest.raises(CoverageError, match=said):
            shards.prove([*whole[:2], wrong])
    with pytest.raises(CoverageError, match="the shards that are missing"):
        shards.prove([whole[0], whole[2]])


def test_a_shard_that_cannot_be_read_is_named_on_every_rank() -> None:
    def open_(shard: int) -> Any:
        yield from range(3)
        if shard == 2:
            raise OSError("the disk is gone")

    def rank(backend: Any) -> Any:
        return evaluate(
            lambda x: x, ShardedStream(range(4), open_), {"m": Mean()}, backend, 2,
            update=lambda outputs, batch: (outputs,), schedule="leases",
        )  # fmt: skip

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, RankError)
        assert "sample 3 of the shard '2' could not be read: OSError: the disk" in str(outcome)


@pytest.mark.parametrize(
    ("samples", "limit", "said"),
    [
        (lambda: iter([1.0]), None, "give a list .*ShardedStream"),
        (stream_of([3]), 2, "limit can't be kept in leases of shards"),
    ],
)
def test_what_has_no_units_is_refused(samples: Any, limit: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        evaluate(lambda x: x, samples, {}, "non_dist", 2, limit=limit, schedule="leases")
