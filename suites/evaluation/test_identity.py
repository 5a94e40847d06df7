"""Ranks, and runs that go on, evaluate the same thing, or are told by name what differs."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from disteval import Leases, Task, UsageError, evaluate, load_predictions, predict_all
from disteval.data import Predictions, ShardedStream
from disteval.errors import HarnessError
from disteval.metrics import Accuracy, BaseMetric, ConfusionMatrix, Mean, Weighted
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values

pytestmark = pytest.mark.usefixtures("without_canary")

THRESHOLD = 2.0
SAMPLES = {"x": np.arange(12.0), "label": np.arange(12) % 3}


def predict(batch: Any) -> Any:
    return np.eye(3)[np.asarray(batch["label"])] * np.asarray(batch["x"])[:, None]


def with_labels(outputs: Any, batch: Any) -> Any:
    return outputs, batch["label"]


def with_next_labels(outputs: Any, batch: Any) -> Any:
    return outputs, (batch["label"] + 1) % 3


def above(outputs: Any, batch: Any, least: float = 0.5) -> Any:
    return outputs * (outputs > least), batch["label"]


def closing_over(value: Any) -> Callable[..., Any]:
    def update(outputs: Any, batch: Any) -> Any:
        return outputs * np.asarray(value).sum(), batch["label"]

    return update


def held_by(bounds: Any) -> Callable[..., Any]:
    return lambda outputs, batch: above(outputs, batch, bounds.least)


def calling(helper: Callable[..., Any]) -> Callable[..., Any]:
    return lambda outputs, batch: helper(outputs, batch)


class Above:
    """A function that is an object, with a setting."""

    def __init__(self, least: float) -> None:
        self.least = least

    def __call__(self, outputs: Any, batch: Any) -> Any:
        return above(outputs, batch, self.least)


class AbovePrivately:
    """The same, with a setting that nobody else may read, and a count that is none."""

    def __init__(self, least: float) -> None:
        self._least, self._calls = least, least

    def __call__(self, outputs: Any, batch: Any) -> Any:
        self._calls += 1
        return above(outputs, batch, self._least)


class AboveInSlots:
    """The same, with slots."""

    __slots__ = ("least",)

    def __init__(self, least: float) -> None:
        self.least = least

    def __call__(self, outputs: Any, batch: Any) -> Any:
        return above(outputs, batch, self.least)


@dataclass(slots=True)
class Bounds:
    """Settings that are no array."""

    least: float


class Own(BaseMetric):
    """A metric of a user's own, with a setting."""

    uses_ids = False

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def add(self, outputs: Any, labels: Any, ids: Any = None) -> None:
        self._extend((outputs.max(1) ** self.power).tolist(), ids)

    def compute_metric(self, results: list[Any]) -> float:
        return float(sum(results))


class OwnOfAnotherCode(Own):
    """The same, whose code is another."""

    def compute_metric(self, results: list[Any]) -> float:
        return float(max(results))


OwnOfAnotherCode.__qualname__ = Own.__qualname__


def stacked(samples: list[Any]) -> Any:
    return {key: np.stack([one[key] for one in samples]) for key in samples[0]}


def cut(samples: list[Any], most: int = 8) -> Any:
    return {key: np.stack([one[key] for one in samples[:most]]) for key in samples[0]}


def best(outputs: Any, batch: Any, k: int) -> Any:
    return outputs[:, :k]


def of_shards(*names: str) -> ShardedStream:
    """Return the samples in two shards, whatever their names are."""
    return ShardedStream(names, lambda name: ROWS[:6] if name == names[0] else ROWS[6:])


ROWS = [{"x": x, "label": y} for x, y in zip(SAMPLES["x"], SAMPLES["label"], strict=True)]
UPDATES: dict[str, tuple[Any, Any, list[str]]] = {
    "another function": (with_labels, with_next_labels, ["with_labels", "with_next_labels"]),
    "a default": (above, partial(above, least=0.7), ["0.7"]),
    "an argument of a partial": (partial(above, least=0.5), partial(above, least=0.7), ["0.7"]),
    "a number": (closing_over(2), closing_over(3), ["2", "3"]),
    "a list": (closing_over([1, 2]), closing_over([2, 1]), ["[1, 2]", "[2, 1]"]),
    "a dict": (closing_over([{"a": 1}["a"]]), closing_over([7]), ["[1]", "[7]"]),
    "an array": (closing_over(np.ones(3)), closing_over(np.ones(3) * 2), ["1.0", "2.0"]),
    "a long array": (closing_over(np.ones(10**6)), closing_over(np.ones(10**6) * 2), ["1000000"]),
    "a function": (calling(with_labels), calling(with_next_labels), ["helper", "with_labels"]),
    "what a function holds": (calling(closing_over(2)), calling(closing_over(3)), ["2", "3"]),
    "a setting of an object": (Above(0.5), Above(0.7), ["least", "0.5", "0.7"]),
    "a private setting": (AbovePrivately(0.5), AbovePrivately(0.7), ["_least", "0.5", "0.7"]),
    "a slot of an object": (AboveInSlots(0.5), AboveInSlots(0.7), ["least", "0.5", "0.7"]),
    "a slot of settings": (held_by(Bounds(0.5)), held_by(Bounds(0.7)), ["0.5", "0.7"]),
    "that of one metric": ({"m": with_labels}, {"m": with_next_labels}, ["'m'"]),
}
METRICS: dict[str, tuple[BaseMetric, BaseMetric, list[str]]] = {
    "a class": (Accuracy(), ConfusionMatrix(3), ["Accuracy", "ConfusionMatrix"]),
    "a setting": (Accuracy(topk=1), Accuracy(topk=2), ["topk", "(1,)", "(2,)"]),
    "one inside": (Weighted(Accuracy()), Weighted(Accuracy(topk=2)), ["topk"]),
    "one of a user's class": (Own(1), Own(2), ["power", "1", "2"]),
    "code of a user's class": (Own(1), OwnOfAnotherCode(1), ["compute_metric"]),
}


def outcomes_of_ranks(first: dict[str, Any], second: dict[str, Any]) -> list[Any]:
    """Evaluate on three ranks, of which rank 1 has other arguments."""

    def rank(backend: Any) -> Any:
        given = {"predict": predict, "samples": SAMPLES, "metrics": {"m": Mean()}}
        given |= copy.deepcopy(second if backend.rank == 1 else first)
        return evaluate(backend=backend, batch_size=2, **given)

    return run_ranks(3, rank)


def refused_on_every_rank(outcomes: list[Any], said: list[str]) -> None:
    assert all(isinstance(outcome, UsageError) for outcome in outcomes), outcomes
    (message,) = {str(outcome) for outcome in outcomes}
    assert all(each in message for each in [*said, "rank 0", "rank 1"]), message
    assert "rank 2" not in message


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_that_differs_on_a_rank_is_refused_by_name(name: str) -> None:
    one, other, said = UPDATES[name]
    first, second = ({"metrics": {"m": Accuracy()}, "update": each} for each in (one, other))
    refused_on_every_rank(outcomes_of_ranks(first, second), ["update", *said])


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_that_differs_on_a_rank_is_refused_by_name(name: str) -> None:
    one, other, said = METRICS[name]
    first, second = ({"metrics": {"m": each}, "update": with_labels} for each in (one, other))
    refused_on_every_rank(outcomes_of_ranks(first, second), ["the metric 'm'", *said])


def test_collate_and_the_code_of_the_model_are_compared() -> None:
    outcomes = outcomes_of_ranks({"collate": stacked}, {"collate": partial(cut, most=9)})
    refused_on_every_rank(outcomes, ["collate", "stacked", "cut"])
    outcomes = outcomes_of_ranks({}, {"predict": lambda batch: predict(batch) + 1})
    refused_on_every_rank(outcomes, ["predict"])


def test_what_is_kept_of_predictions_is_compared(tmp_path: Path) -> None:
    for folder in (None, tmp_path):

        def rank(backend: Any, folder: Path | None = folder) -> Any:
            record = partial(lambda outputs, batch, k: outputs[:, :k], k=1 + (backend.rank == 1))
            return predict_all(predict, SAMPLES, backend, 2, record=record, folder=folder)

        refused_on_every_rank(run_ranks(3, rank), ["record", "1", "2"])


class Lazy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not there yet")


def test_what_each_rank_has_of_its_own_is_allowed() -> None:
    def rank(backend: Any) -> Any:
        number, calls, lazy = backend.rank, [0], Lazy()

        def model(batch: Any) -> Any:
            calls[0] += number
            return predict(batch) if isinstance(lazy, Lazy) else None

        place = SimpleNamespace(rank=number)
        count = 0

        def update(outputs: Any, batch: Any) -> Any:
            nonlocal count
            count += place.rank
            return outputs, batch["label"]

        found = evaluate(model, SAMPLES, {"m": Accuracy()}, backend, 2, update=update)
        return found.metrics

    assert len({str(found) for found in values(run_ranks(3, rank))}) == 1


class Machine:
    """A model whose machine is taken away after some batches."""

    def __init__(self) -> None:
        self.batches = 99

    def model(self, **held: Any) -> Any:
        def run(batch: Any) -> Any:
            self.batches -= 1
            if self.batches < 0:
                raise ValueError("the machine is taken away")
            return predict(batch) * np.asarray(held["scale"]).sum()

        return run


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "name": ({"name": "step 2000"}, ["name", "step 1000", "step 2000"]),
    "update": ({"update": with_next_labels}, ["update", "with_labels", "with_next_labels"]),
    "default of update": ({"update": partial(above, least=0.9)}, ["update", "above"]),
    "collate": ({"collate": partial(cut, most=9)}, ["collate"]),
    "settings of a metric": ({"metrics": {"m": Accuracy(topk=2)}}, ["topk", "(1,)", "(2,)"]),
    "another metric": ({"metrics": {"m": Accuracy(), "n": Accuracy()}}, ["metrics", "'n'"]),
    "a metric of one's own": ({"metrics": {"m": Own(2)}}, ["the metric 'm'", "Own"]),
    "the model's code": ({"predict": predict}, ["predict"]),
    "the model's weights": ({"scale": np.array([1.0, 2.0])}, ["[2.0, 1.0]", "[1.0, 2.0]"]),
    "the samples": ({"samples": ROWS[:6] + ROWS[7:] + ROWS[:1]}, ["sample"]),
    "their order": ({"samples": ROWS[::-1]}, ["sample"]),
    "their number": ({"samples": ROWS[:11]}, ["number of samples", "12", "11"]),
    "names of shards": ({"samples": of_shards("a", "c")}, ["a to b", "a to c"]),
    "record": ({"record": partial(best, k=2)}, ["record", "1", "2"]),
    "format of predictions": ({"format": "npy"}, ["the format of predictions", "jsonl", "npy"]),
}


@pytest.mark.parametrize("way", ["ledger", "ledger of leases", "predictions"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_does_not_go_on_with_something_else(tmp_path: Path, change: str, way: str) -> None:
    machine = Machine()
    samples = of_shards("a", "b") if change == "names of shards" else ROWS
    where: dict[str, Any] = {} if way == "predictions" else {"ledger": tmp_path / "ledger"}
    where["leases"] = Leases() if way == "ledger of leases" else None

    def run(world: int, **changed: Any) -> list[Any]:
        def rank(backend: Any) -> Any:
            arguments: dict[str, Any] = {
                "samples": samples, "metrics": {"m": Accuracy()}, "update": with_labels,
                "collate": stacked, "name": "step 1000", "scale": np.array([2.0, 1.0]),
                "record": partial(best, k=1), "format": "jsonl",
            } | changed  # fmt: skip
            scale, form, record = map(arguments.pop, ("scale", "format", "record"))
            arguments.setdefault("predict", machine.model(scale=scale))
            if way == "predictions" or {"format", "record"} & {*change.split()}:
                folder = tmp_path / "predictions"
                where["predictions"] = Predictions(folder, form, record=record)
            return Task(batch_size=2, **arguments).evaluate(backend, **where)

        return run_ranks(world, rank)

    machine.batches = 3
    assert all(isinstance(outcome, HarnessError) for outcome in run(1))
    machine.batches = 99
    changed, said = CHANGES[change]
    for outcome in run(2, **changed):
        assert isinstance(outcome, UsageError), outcome
        message = str(outcome)
        assert all(each in message for each in said), message
        assert "another folder" in message
        assert "remove this one" in message
    found = values(run(2))
    assert [each.metrics["m"]["top1"] for each in found] == [1.0] * 2
    assert 0 < found[0].stored < 12
    if way == "predictions":
        assert len(load_predictions(tmp_path / "predictions")) == 12


@given(st.sampled_from([1, 2.0, "a", None, (1, "b"), {"k": [1]}, b"x", {3, 1}]))
def test_functions_that_are_made_again_are_the_same(value: Any) -> None:
    def rank(backend: Any) -> Any:
        def update(outputs: Any, batch: Any) -> Any:
            return outputs, batch["label"], value is None and THRESHOLD

        return evaluate(
            predict, SAMPLES, {"m": Accuracy()}, backend, 6,
            update=lambda *given: update(*given)[:2],
        ).metrics  # fmt: skip

    values(run_ranks(2, rank))


def test_what_can_not_be_compared_with_an_earlier_run_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, lock = Machine(), threading.Lock()
    steps = [partial(divmod, value, 1) for value in range(300)]  # more than is looked at

    def update(outputs: Any, batch: Any) -> Any:
        with lock:
            return outputs, batch["label"], steps

    def run() -> Any:
        model = machine.model(scale=np.ones(1))
        return evaluate(
            model, ROWS, {"m": Accuracy()}, "non_dist", 2, collate=stacked,
            update=lambda *given: update(*given)[:2], predictions=tmp_path / "predictions",
        )  # fmt: skip

    machine.batches = 3
    with pytest.raises(HarnessError):
        run()
    machine.batches = 99
    caplog.clear()
    assert run().stored == 6
    assert "lock of update" in caplog.text
    assert "the rest of update" in caplog.text
