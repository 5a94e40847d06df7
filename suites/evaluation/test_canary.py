"""Ranks with other models get no result, wherever the weights are, and random outputs are told."""

import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from disteval import Leases, RankError, Task, UsageError, evaluate, predict_all
from disteval.data import ByLength, ShardedStream
from disteval.evaluation.borrowed import run_leases
from disteval.metrics import Mean
from disteval.world import World
from disteval.world.channel.link import Link, connect

from suites.helpers.lost_ranks import lend
from suites.helpers.processes import wait_for
from suites.helpers.thread_world import run_ranks, values
from suites.mutants.sockets import Sockets

LEASES = [None, Leases()]
TURNS = Leases(group_size=3, in_group="turns")
SAMPLES = np.arange(40.0).reshape(20, 2)
KINDS: dict[str, Callable[[], Any]] = {
    "array": lambda: SAMPLES,
    "list": lambda: [*SAMPLES],
    "stream": lambda: lambda: iter(SAMPLES),
    "shards": lambda: ShardedStream(["a", "b", "c"], lambda name: SAMPLES["abc".index(name) :: 3]),
}


class Net:
    """A model that nobody can look into."""

    __slots__ = ("_form", "_weights")

    def __init__(self, weights: Any, form: Callable[[Any], Any]) -> None:
        self._weights, self._form = np.asarray(weights), form

    def compute(self, batch: Any) -> Any:
        return self._form(np.asarray(batch) @ self._weights)


def model(weights: Any, form: Callable[[Any], Any] = lambda scores: scores) -> Any:
    """Return a function that closes over a model in a list."""
    nets = [Net(weights, form)]
    return lambda batch: nets[0].compute(batch)


def first(outputs: Any, batch: Any) -> Any:
    """Return what `Mean` takes of outputs of any form: a number for each sample."""
    return (np.asarray(batch)[:, 0],)


def second(outputs: Any, batch: Any) -> Any:
    return (np.asarray(batch)[:, 1],)


def mean_of(predict: Any, backend: Any = "non_dist", kind: str = "array", **options: Any) -> Any:
    return evaluate(predict, KINDS[kind](), {"mean": Mean()}, backend, 4, update=first, **options)


FORMS: dict[str, Callable[[Any], Any]] = {
    "scores": lambda scores: scores,
    "labels": lambda scores: (scores > 11).astype(int),
    "texts": lambda scores: [f"answer {score:.0f}" for score in scores],
    "a dict": lambda scores: {"label": scores > 11, "scores": scores.astype(np.float32)},
    "float16": lambda scores: scores.astype(np.float16),
}


@pytest.mark.parametrize("leases", [*LEASES, TURNS])
@pytest.mark.parametrize("form", FORMS)
def test_another_model_on_a_rank_is_refused_on_every_rank(form: str, leases: Any) -> None:
    def rank(backend: Any) -> Any:
        predict = model([1.0, 2.0 if backend.rank == 1 else 1.0], FORMS[form])
        return mean_of(predict, backend, leases=leases)

    outcomes = run_ranks(3, rank)
    assert all(isinstance(outcome, UsageError) for outcome in outcomes), outcomes
    (message,) = set(map(str, outcomes))
    assert "rank 1" in message and "rank 2" not in message


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("differs", ["model", "samples", "size", "name", "update"])
def test_ranks_that_join_a_lender_are_compared_whoever_is_first(
    differs: str, earlier: int, tmp_path: Path
) -> None:
    is_refused = Event()

    def rank(number: int) -> Any:
        other = differs if number else ""
        task = Task(
            predict=model([1.0, 2.0 if other == "model" else 1.0]),
            samples=SAMPLES[:: -1 if other == "samples" else 1][: 18 if other == "size" else 20],
            metrics={"mean": Mean()}, batch_size=4, name=other if other == "name" else "",
            update=second if other == "update" else first,
        )  # fmt: skip
        with closing(Link(connect(tmp_path))) as link:
            link.report(number)
            return run_leases(task, link, progress=lambda *_: is_refused.wait(30))

    lender, thread = lend(None, tmp_path, expected=2)
    with thread, ThreadPoolExecutor() as threads:
        waiting = threads.submit(rank, earlier)
        assert wait_for(lambda: lender.report.ranks == 1)
        other = threads.submit(rank, 1 - earlier)
        assert isinstance(other.exception(30), UsageError)
        is_refused.set()
        assert isinstance(waiting.exception(30), UsageError)
    assert {"0", "1"} <= {*str(other.exception()).replace(",", "").replace(";", "").split()}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_noticed_with_samples_of_any_kind(kind: str) -> None:
    def rank(backend: Any, differs: bool) -> Any:
        return mean_of(model([1.0, 1.0 + (differs and backend.rank == 2)]), backend, kind)

    for outcome in run_ranks(3, partial(rank, differs=True)):
        assert isinstance(outcome, UsageError) and "rank 2" in str(outcome)
    for found in values(run_ranks(3, partial(rank, differs=False))):
        assert (found.difference, found.repeatable) == (0.0, True)


@pytest.mark.parametrize("wrong", [1, 2])
def test_of_ranks_that_evaluate_the_same_batches_those_are_compared_whose_outputs_count(
    wrong: int,
) -> None:
    def rank(backend: Any) -> Any:
        predict = model([1.0, 1.0 + (backend.rank == wrong)])
        return mean_of(predict, backend, leases=Leases(group_size=2))

    outcomes = run_ranks(4, rank)
    assert {isinstance(outcome, UsageError) for outcome in outcomes} == {wrong == 2}
    assert wrong == 2 or {found.difference for found in values(outcomes)} == {0.0}


@pytest.mark.parametrize("leases", LEASES)
def test_a_difference_as_that_of_another_device_is_allowed_and_told(leases: Any) -> None:
    def rank(backend: Any) -> Any:
        return mean_of(model([1.0, 1.0 + 1e-3 * backend.rank]), backend, leases=leases)

    for found in values(run_ranks(3, rank)):
        assert 0 < found.difference <= 2e-3 * SAMPLES.max()


@pytest.mark.parametrize("leases", LEASES)
@pytest.mark.parametrize("draw", [np.random.random, random.random])
@pytest.mark.parametrize("size", [1, 3])
def test_random_outputs_are_told(
    size: int, draw: Any, leases: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the generator; the evaluation has a result, which says so."""

    def rank(backend: Any) -> Any:
        return mean_of(lambda batch: [draw() for _ in batch], backend, leases=leases)

    with caplog.at_level(logging.WARNING, logger="disteval"):
        for found in values(run_ranks(size, rank)):
            assert (found.difference, found.repeatable) == (None, False)
            assert found.coverage == "by index"
    name = "random" if draw is random.random else "numpy.random"
    assert f"generator of {name}" in caplog.text


def test_ranks_with_other_seeds_have_a_random_model_and_no_other_one() -> None:
    def rank(backend: Any) -> Any:
        np.random.seed(backend.rank)
        found = mean_of(lambda batch: np.random.random(len(batch)), backend)
        return found.difference, found.repeatable

    with World(Sockets, 2) as world:
        assert world.run(rank) == [(None, False)] * 2


def test_a_generator_of_ones_own_is_noticed() -> None:
    generator = np.random.default_rng(0)
    for kind in KINDS:
        found = mean_of(lambda batch: generator.random(len(batch)), kind=kind)
        assert (found.repeatable, found.coverage) == (False, "by index")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("place", ["samples", "collate"])
def test_samples_that_draw_are_noticed(
    size: int, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On one rank as well, where there is no other one to compare them with."""
    generator = np.random.default_rng(0)

    class Noisy(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) + generator.random() * (place == "samples")

    def collate(samples: list[Any]) -> Any:
        return np.stack(samples) + generator.random() * (place == "collate")

    def rank(backend: Any) -> Any:
        return evaluate(
            lambda x: x, Noisy(SAMPLES), {"mean": Mean()}, backend, 4,
            collate=collate, update=first,
        ).repeatable  # fmt: skip

    assert values(run_ranks(size, rank)) == [False] * size
    assert "each time" in caplog.text or "read and collated again" in caplog.text


def test_global_generators_and_results_are_as_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers() -> Any:
        np.random.seed(5)
        random.seed(5)
        drawn = predict_all(lambda batch: np.random.random(len(batch)), SAMPLES, "non_dist", 4)
        return drawn.tolist(), np.random.random(), random.random()

    found = numbers()
    monkeypatch.setenv("DISTEVAL_CANARY", "off")
    assert numbers() == found


def test_inputs_that_predict_changes_are_copied() -> None:
    def predict(batch: Any) -> Any:
        batch *= 2
        return batch.sum(axis=1)

    found = evaluate(predict, SAMPLES.copy(), {"mean": Mean()}, "non_dist", 4, update=doubled)
    assert found.repeatable is True
    assert found.metrics["mean"]["mean"] == 2 * SAMPLES.sum(axis=1).mean()


def doubled(outputs: Any, batch: Any) -> Any:
    return (outputs,)


def test_a_model_that_takes_whole_batches_is_called_with_them() -> None:
    """And as often on every rank, as a model that spans ranks needs."""

    def rank(backend: Any) -> Any:
        sizes = []

        def predict(batch: Any) -> Any:
            sizes.append(len(batch))
            assert len(batch) == 4
            return batch.sum(axis=1) * (1 + (backend.rank == 1 and wrong))

        return mean_of(predict, backend), sizes.count(4)

    wrong = False
    found = values(run_ranks(3, rank))
    assert {(each.difference, each.repeatable) for each, _ in found} == {(0.0, True)}
    assert len({calls for _, calls in found}) == 1
    wrong = True
    assert all(isinstance(outcome, UsageError) for outcome in run_ranks(3, rank))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTEVAL_CANARY", "off")
    for found in values(run_ranks(2, lambda b: mean_of(model([1.0, float(b.rank)]), b))):
        assert (found.difference, found.repeatable) == (None, None)


class PowerError(Exception):
    """The end of an evaluation before its time."""


@pytest.mark.parametrize("way", ["predictions", "ledger"])
def test_a_run_does_not_go_on_with_another_model(tmp_path: Path, way: str) -> None:
    def stop(done: int, every: int | None) -> None:
        if done >= 8:
            raise PowerError("the power is gone")

    def run(scale: float, progress: Any = False) -> Any:
        options: dict[str, Any] = {"leases": Leases()} if way == "ledger" else {}
        options |= {way: tmp_path / "folder", "progress": progress}
        return mean_of(model([scale, scale]), **options)

    with pytest.raises(RankError, match="power"):
        run(1.0, stop)
    with pytest.raises(UsageError, match="outputs"):
        run(2.0)
    assert 0 < run(1.0).stored < len(SAMPLES)


def test_a_stream_that_goes_on_says_that_its_model_is_not_known_to_be_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        mean_of(model([1.0, 1.0]), kind="stream", ledger=tmp_path)
    assert "outputs of predict" in caplog.text


def test_the_shortest_samples_are_compared_where_lengths_are_given() -> None:
    calls: list[list[int]] = []

    def predict(batch: Any, ids: Any) -> Any:
        calls.append(ids.tolist())
        return batch

    by_length = ByLength(np.arange(20) % 10 + 1)
    values(run_ranks(2, lambda backend: mean_of(predict, backend, by_length=by_length)))
    assert calls.count([0, 10, 1, 11]) == 2 and calls.count([9]) + calls.count([7]) == 4
