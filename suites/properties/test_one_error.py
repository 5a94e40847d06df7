"""What fails on one rank is the same error on every rank, and the next collective works."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import evaluate
from disteval.metrics import Accuracy, Mean, MetricGroup
from hypothesis import strategies as st

from suites.properties.cases import OF_ROWS, Indexed, Model, Numbers, error_of, rows, scored
from suites.properties.conftest import Each

SIZE = 24
PLACES = ["reading", "collate", "predict", "update", "add", "compute", "rows"]


class TornError(Exception):
    """What fails, on one rank."""


class Fault(NamedTuple):
    """Where something fails: a step, at a sample."""

    place: str
    sample: int

    def hits(self, place: str, numbers: Any) -> bool:
        return place == self.place and self.sample in np.asarray(numbers).ravel().tolist()


class Reading(Indexed):
    """Samples of which one can't be read."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(rows(SIZE))
        self.fault = fault

    def __getitem__(self, number: int) -> Any:
        if self.fault.hits("reading", number):
            raise TornError("no such file")
        return super().__getitem__(number)


class Failing(Model):
    """A model, and the steps around it, of which one fails at a sample."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def __call__(self, batch: Any) -> Any:
        if self.fault.hits("predict", batch["number"]):
            raise TornError("no memory")
        found = super().__call__(batch)
        if self.fault.hits("rows", batch["number"]):
            return {name: column[:-1] for name, column in found.items()}
        return found

    def collate(self, samples: list[Any]) -> Any:
        numbers = np.array([sample["number"] for sample in samples])
        if self.fault.hits("collate", numbers):
            raise TornError("not alike")
        columns = {name: np.stack([sample[name] for sample in samples]) for name in ("scores",)}
        return columns | {"number": numbers, "label": np.array([s["label"] for s in samples])}

    def update(self, outputs: Any, batch: Any) -> Any:
        if self.fault.hits("update", batch["number"]):
            raise TornError("not so")
        return scored(outputs, batch)


class Metric(Numbers):
    """A metric that fails at a sample, or on rank 0 where it computes."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = list(fault)

    def add(self, outputs: Any, labels: Any = None, *, ids: Any = None) -> None:
        if Fault(*self.fault).hits("add", outputs["number"]):
            raise TornError("not this one")
        super().add(outputs, labels, ids=ids)

    def compute_metric(self, results: list[Any]) -> list[Any]:
        if self.fault[0] == "compute":
            raise TornError("nothing comes of it")
        return super().compute_metric(results)


def failed(place: str, backend: Any, drawn: tuple[int, int]) -> Any:
    sample, batch_size = drawn
    fault = Fault(place, sample)
    model = Failing(fault)
    kind, named = error_of(
        backend,
        lambda: evaluate(
            model, Reading(fault), {"numbers": Metric(fault), "accuracy": Accuracy()}, backend,
            batch_size, collate=model.collate, update={"accuracy": model.update},
        ),
    )  # fmt: skip
    return kind, place == "compute" or sample in named


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_fails_at_a_sample_is_told_on_every_rank(each: Each, place: str) -> None:
    """With the number of the sample, whichever rank has it."""
    each(
        st.tuples(st.integers(0, SIZE - 1), st.integers(1, 4)),
        partial(failed, place),
        lambda _: ("RankError", True),
        split=len(PLACES),
    )


def alone_otherwise(what: str, backend: Any, guilty: int) -> Any:
    """Call something with other arguments on one rank; return the error of all."""
    differs = backend.rank == guilty % backend.world_size
    samples = rows(SIZE)[: SIZE - differs] if "samples" in what else rows(SIZE)
    wrap = OF_ROWS.get(what.split()[-1], list)
    top = (1, 2) if differs and what == "settings" else 1
    metrics: dict[str, Any] = {"accuracy": Accuracy(top)}
    updates: dict[str, Any] = {"accuracy": scored}
    if differs and what == "metrics":
        metrics["mean"], updates["mean"] = Mean(), lambda outputs, batch: (outputs["number"],)
    model = Model(4 if differs and what == "models" else 2)
    batch_size = {"batch sizes": 5, "no batch size": 0}.get(what, 4) if differs else 4
    return error_of(
        backend,
        lambda: evaluate(
            model, wrap(samples), metrics, backend, batch_size,
update=updates,
        ),
    )[0]  # fmt: skip


WRONG = {
    "samples": "UsageError",
    "samples of a stream": "UsageError",
    "samples of shards": "UsageError",
    "metrics": "UsageError",
    "models": "UsageError",
    "settings": "UsageError",
    "batch sizes": "UsageError",
    "no batch size": "RankError",
}


@pytest.mark.world_sizes(2, 3)
@pytest.mark.parametrize("what", WRONG)
def test_ranks_that_were_given_different_things_all_say_so(each: Each, what: str) -> None:
    """Whichever rank has fewer samples, or other metrics, settings or arguments."""
    each(st.integers(0, 7), partial(alone_otherwise, what), lambda _: WRONG[what], split=50)


def added_otherwise(what: str, backend: Any, guilty: int) -> Any:
    differs = backend.rank == guilty % backend.world_size
    name = "other" if what == "names" and differs else "mean"
    mean = Mean()
    ids = None if what == "ids" and differs else [2 * backend.rank, 2 * backend.rank + 1]
    group = MetricGroup({name: mean}, backend)
    group.add(np.ones(2), ids=ids)
    return error_of(backend, lambda: group.compute(2 * backend.world_size))[0]


@pytest.mark.world_sizes(2, 3)
@pytest.mark.parametrize("what", ["names", "ids"])
def test_ranks_that_count_differently_all_say_so(each: Each, what: str) -> None:
    """In loops of their own, where they add and compute by hand."""
    each(st.integers(0, 7), partial(added_otherwise, what), lambda _: "UsageError", split=50)
