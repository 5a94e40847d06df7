"""Evaluation in leases has the bits of one rank, at any world size."""

import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from disteval import HarnessError, Leases, RankError, UsageError, WorldError, evaluate, ledger
from disteval.data import ShardedStream
from disteval.metrics import AUROC, Accuracy, Bootstrap, Mean
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.hosts import pretend_hosts
from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.metrics.cases import assert_same
from suites.properties.cases import SAMPLES, Entries, Numbers, scored
from suites.properties.test_exactly_once import plans

pytestmark = pytest.mark.usefixtures("without_canary")

DATA = (np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 4)


KINDS = st.sampled_from(["columns", "rows", "indexed", "shards"])


@settings(max_examples=30, deadline=None)
@given(
    KINDS.flatmap(lambda kind: st.tuples(st.just(kind), st.integers(0, 30), plans(kind))),
    st.integers(1, 5), st.booleans(),
)  # fmt: skip
def test_leases_have_the_bits_of_one_rank(drawn: Any, world: int, sums_alone: bool) -> None:
    kind, size, arguments = drawn
    samples = SAMPLES[kind](size, "numpy")
    if kind == "shards":  # of which nobody knows the lengths
        arguments.pop("limit", None)

    def predict(batch: Any) -> Any:
        # A model whose result depends on the batch: so it shows which batches it got.
        noise = len(batch["number"]) + np.max(batch["number"], initial=0) / 1e3
        return {"scores": np.asarray(batch["scores"]) + noise, "number": batch["number"]}

    def rank(backend: Any, leases: Any) -> Any:
        metrics: dict[str, Any] = {
            "numbers": Numbers(),
            "accuracy": Accuracy(counts=True),
            "mean": Mean(),
            "bootstrap": Bootstrap(Mean(), resamples=4),
            "auroc": AUROC(),
        }
        updates = {
            "accuracy": scored,
            "mean": lambda outputs, batch: (outputs["scores"].sum(axis=1),),
            "bootstrap": lambda outputs, batch: (outputs["scores"][:, 0],),
            "auroc": lambda outputs, batch: (outputs["scores"][:, 1], batch["label"] > 1),
        }
        for name in ("numbers", "auroc") if sums_alone else ():
            del metrics[name]
            updates.pop(name, None)
        try:
            found = evaluate(
                predict, samples, metrics, backend, update=updates, leases=leases, **arguments
            )
        except HarnessError as error:
            return str(error)
        return {"size": found.size, "padded": found.padded, **found.metrics}

    (expected,) = values(run_ranks(1, lambda backend: rank(backend, None)))
    with patch.object(ledger, "FOLD_BYTES", 0 if sums_alone else ledger.FOLD_BYTES):
        outcomes = run_ranks(world, lambda backend: rank(backend, Leases()))
    for found in values(outcomes):
        if isinstance(expected, str):
            assert found == expected
        else:
            assert_same(found, expected)


def test_the_report_says_what_happened() -> None:
    def rank(backend: ThreadsDist) -> Any:
        found = evaluate(
            lambda x: x, DATA, {"a": Accuracy()}, backend, batch_size=4, leases=Leases()
        )
        return found.leases, found.world_size

    first, *others = values(run_ranks(3, rank))
    assert others == [first, first]
    assert first[1] == first[0].ranks == 3
    assert first[0].committed >= 3
    assert not first[0].lost
    assert not first[0].failed


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_sample_that_no_rank_can_evaluate_is_named_on_each(world: int) -> None:
    def predict(batch: Any) -> Any:
        if 37 in batch:
            raise ValueError("no good")
        return np.eye(4)[batch % 4]

    def rank(backend: ThreadsDist) -> Any:
        samples = (np.arange(60), np.arange(60) % 4)
        return evaluate(predict, samples, {"a": Accuracy()}, backend, 4, leases=Leases())

    outcomes = run_ranks(world, rank)
    assert_each_raised(outcomes, RankError, "36, 37, 38, 39", "no good")
    causes = sum(isinstance(outcome.__cause__, ValueError) for outcome in outcomes)
    assert causes >= min(world, 3)  # a fourth may have held a copy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ledger": 3}, "ledger"),
        ({"leases": "lease"}, "'lease'"),
        ({"leases": Leases(group_size=2)}, "group_size=2"),
    ],
)
@pytest.mark.parametrize("world", [1, 3])
def test_arguments_are_checked_on_every_rank(given: dict[str, Any], words: str, world: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        arguments = {"leases": Leases(), **given}
        return evaluate(lambda x: x, DATA, {"a": Accuracy()}, backend, 4, **arguments)

    assert_each_raised(run_ranks(world, rank), UsageError, words)


@pytest.mark.parametrize(
    "given", [(0,), ("1",), (True,), (60.0, 0), (60.0, "two"), (60.0, 2, "both")]
)
def test_leases_of_another_kind_are_refused_with_their_value(given: Any) -> None:
    with pytest.raises(UsageError, match=repr(given[-1])):
        Leases(*given)


def test_an_error_of_one_rank_before_the_first_batch_reaches_every_rank() -> None:
    def rank(backend: ThreadsDist) -> Any:
        def slice_rows(batch_size: int) -> int:
            if backend.rank == 1:
                raise ValueError("no slice")
            return batch_size

        def predict(batch: Any) -> Any:
            return batch

        predict.slice_rows = slice_rows  # type: ignore[attr-defined]
        return evaluate(predict, DATA, {"a": Accuracy()}, backend, 4, leases=Leases())

    assert_each_raised(run_ranks(3, rank), HarnessError, "rank 1 ", "no slice")


def test_an_interrupt_ends_the_lender_and_the_ledger_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    calls = []

    def predict(batch: Any) -> Any:
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return batch

    def once() -> Any:
        return evaluate(
            predict, DATA, {"a": Accuracy()}, "non_dist", 4, leases=Leases(),
            ledger=tmp_path / "ledger",
        )  # fmt: skip

    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        once()
    started = {*threading.enumerate()} - before
    assert not [thread for thread in started if not type(thread).__module__.startswith("tqdm")]
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]
    found = once()
    assert found.stored > 0
    assert found.metrics == evaluate(predict, DATA, {"a": Accuracy()}, "non_dist", 4).metrics
    done = len(calls)
    assert once().metrics == found.metrics  # at once
    assert len(calls) == done


def test_an_interrupt_of_rank_0_is_an_error_on_the_others() -> None:
    def rank(backend: ThreadsDist) -> Any:
        begun.wait(30)

        def predict(batch: Any) -> Any:
            if backend.rank == 0:
                raise KeyboardInterrupt
            return batch

        return evaluate(predict, DATA, {"a": Accuracy()}, backend, 4, leases=Leases())

    begun = threading.Barrier(2)
    first, second = run_ranks(2, rank)
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, WorldError) or second.leases.lost  # type: ignore[union-attr]


class Halves:
    """A model of which each rank of a group has one half; it needs both for every batch."""

    def __init__(self, world: int) -> None:
        self._groups = [(threading.Barrier(2, timeout=3.0), [0, 0]) for _ in range(world // 2)]

    def __call__(self, rank: int, batch: Any) -> Any:
        barrier, parts = self._groups[rank // 2]
        parts[rank % 2] = batch * (rank % 2 + 1)
        barrier.wait()
        whole = parts[0] + parts[1]
        barrier.wait()
        return whole


@pytest.mark.parametrize("guilty", [None, 1])
def test_a_model_that_spans_ranks_evaluates_each_lease_on_all_of_them(guilty: int | None) -> None:
    """A group of which one rank fails leaves its leases to the others."""
    halves = Halves(4)

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            if backend.rank == guilty:
                raise ValueError("no memory")
            return halves(backend.rank, batch)

        return evaluate(
            predict, DATA, {"a": Accuracy(counts=True)}, backend, 4, leases=Leases(group_size=2),
        )  # fmt: skip

    expected = evaluate(lambda batch: 3 * batch, DATA, {"a": Accuracy(counts=True)}, "non_dist", 4)
    for found in values(run_ranks(4, rank)):
        assert found.metrics == expected.metrics
        assert any("no memory" in text for text in found.leases.failed) == (guilty == 1)


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize("group_size", [2, 4])
def test_ranks_of_a_group_that_take_batches_in_turn_call_the_model_equally_often(
    size: int, group_size: int
) -> None:
    """As a model needs whose parameters are sharded: each call is one of all ranks of the group."""
    groups = [threading.Barrier(group_size, timeout=10.0) for _ in range(4 // group_size)]
    leases = Leases(group_size=group_size, in_group="turns")
    samples = DATA[0][:size], DATA[1][:size]

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            groups[backend.rank // group_size].wait()
            return batch

        metrics = {"a": Accuracy(counts=True), "auroc": AUROC()}
        updates = {"auroc": lambda outputs, batch: (outputs[:, 0], batch[1] > 1)}
        if size < 7:
            del metrics["auroc"], updates["auroc"]
        return evaluate(predict, samples, metrics, backend, 2, update=updates, leases=leases)

    found = values(run_ranks(4, rank))
    assert [each.metrics for each in found] == [found[0].metrics] * 4
    assert (found[0].size, found[0].metrics["a"]["size"]) == (size, size)
    one = evaluate(lambda batch: batch, samples, {"a": Accuracy(counts=True)}, "non_dist", 2)
    assert found[0].metrics["a"] == one.metrics["a"]


def test_shards_have_no_turns() -> None:
    shards = ShardedStream(range(2), lambda shard: [float(shard)])
    leases = Leases(group_size=2, in_group="turns")
    assert_each_raised(
        run_ranks(2, lambda backend: evaluate(lambda x: x, shards, {}, backend, leases=leases)),
        UsageError,
        "'turns'",
    )


class Count(Entries):
    """The number of samples, after a function was called."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def compute_metric(self, results: list[Any]) -> Any:
        self.call()
        return len(results)


def slowly() -> None:
    time.sleep(5.0)


def failing() -> None:
    raise ValueError("no result today")


@pytest.mark.parametrize("group_size", [1, 2])
def test_a_rank_that_computes_for_longer_than_a_lease_lasts_still_has_the_result(
    group_size: int,
) -> None:
    both = threading.Barrier(2)

    def rank(backend: ThreadsDist) -> Any:
        def predict(x: Any) -> Any:
            if both.wait(30):  # both ranks hold the only batch, and one is late with it
                time.sleep(1)
            return x

        return evaluate(
            predict, DATA, {"slow": Count(slowly)}, backend, 60, leases=Leases(3.0, group_size),
            update=lambda outputs, batch: (outputs[:, 0],),
        )  # fmt: skip

    for found in values(run_ranks(2, rank)):
        assert found.metrics["slow"] == 60
        assert len(found.leases.lost) == 1  # the other one has begun, too


def test_an_error_while_the_result_is_computed_reaches_every_rank() -> None:
    def rank(backend: ThreadsDist) -> Any:
        return evaluate(
            lambda x: x, DATA, {"failing": Count(failing)}, backend, 4, leases=Leases(),
            update=lambda outputs, batch: (outputs[:, 0],),
        )  # fmt: skip

    assert_each_raised(run_ranks(2, rank), RankError, "no result today")


def test_ranks_of_other_hosts_reach_the_lender_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    monkeypatch.setenv("DISTEVAL_LEADER", "localhost:29400")  # a name, not an address
    join = pretend_hosts(monkeypatch)

    def rank(backend: ThreadsDist) -> Any:
        join(f"host {backend.rank // 2}")
        return evaluate(lambda x: x, DATA, {"a": Accuracy()}, backend, 4, leases=Leases())

    expected = evaluate(lambda x: x, DATA, {"a": Accuracy()}, "non_dist", 4)
    for found in values(run_ranks(4, rank)):
        assert found.metrics == expected.metrics
        assert not found.leases.lost
    assert [*tmp_path.iterdir()] == []
