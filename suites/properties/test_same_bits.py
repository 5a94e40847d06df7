"""A metric has one result at every world size, batch size, order and schedule, to the last bit."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import Leases, evaluate, seeds
from disteval.metrics import Mean, MetricGroup, from_torchmetrics
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.properties.cases import METRICS, MOST, SAMPLES, array
from suites.properties.conftest import Each, counts


def plans(arrays: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw how samples become batches, and batches become those of ranks."""
    return st.fixed_dictionaries(
        {
            "batch_size": counts(arrays, 1, 9),
            "fixed_shape": st.booleans(),
            "leases": st.sampled_from([None, None, Leases()]),
        }
    )


def evaluated(name: str, arrays: str, backend: Any, drawn: tuple[int, dict[str, Any]]) -> Any:
    size, plan = drawn
    case = METRICS[name]
    fields = dict(zip(("outputs", "labels"), case.args, strict=False))
    samples = {field: array(arrays, values[:size]) for field, values in fields.items()}
    samples |= {field: values[:size] for field, values in case.named.items()}
    found = evaluate(lambda batch: batch["outputs"], samples, {"m": case.make()}, backend, **plan)
    return found.metrics["m"]


@pytest.mark.parametrize("name", METRICS)
def test_evaluate_finds_what_one_process_finds(each: Each, arrays: str, name: str) -> None:
    """However the samples are parted into batches, shares of ranks, and leases."""
    each(
        st.tuples(counts(arrays, 2, MOST), plans(arrays)),
        partial(evaluated, name, arrays),
        lambda drawn: METRICS[name].alone(range(drawn[0])),
        split=len(METRICS),
    )


def draws(ids: Any, seed: int) -> Any:
    return np.array([np.random.default_rng(each).random() for each in seeds(ids, seed)])


def sampled(kind: str, backend: Any, drawn: tuple[str, int, dict[str, Any]]) -> Any:
    where, seed, plan = drawn

    def predict(batch: Any, ids: Any) -> Any:
        assert len(ids) == len(batch["number"])
        return draws(ids, seed) if where == "predict" else batch["drawn"]

    def collate(samples: list[Any], ids: Any) -> Any:
        numbers = np.array([int(sample["number"]) for sample in samples])
        return {"number": numbers, "drawn": draws(ids, seed)}

    plan = {name: plan[name] for name in ("batch_size", "leases") if name in plan}
    plan |= {"leases": None} if kind == "stream" else {}
    plan |= {"collate": collate} if where == "collate" else {}
    samples = SAMPLES[kind](MOST, "numpy")
    found = evaluate(
        predict, samples, {"mean": Mean()}, backend,
        update=lambda outputs, batch: (outputs,), **plan,
    )  # fmt: skip
    return found.metrics["mean"]


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_is_drawn_by_seeds_of_samples_is_the_same_everywhere(each: Each, kind: str) -> None:
    """In predict or in collate, which get the numbers of the samples."""
    each(
        st.tuples(st.sampled_from(["predict", "collate"]), st.integers(0, 99), plans("numpy")),
        partial(sampled, kind),
        lambda drawn: sampled(kind, "non_dist", (*drawn[:2], {"batch_size": MOST})),
        split=len(SAMPLES),
    )


def grouped(backend: Any, drawn: tuple[int, int, int]) -> Any:
    seed, turn, batch_size = drawn
    names = list(METRICS)
    turned = names[turn * backend.rank :] + names[: turn * backend.rank]
    group = {name: METRICS[name].make() for name in turned}
    ids = np.random.default_rng(seed).permutation(MOST)[backend.rank :: backend.world_size]
    for at in range(0, len(ids), batch_size):
        for name, metric in group.items():
            METRICS[name].add(metric, ids[at : at + batch_size])
    found = MetricGroup(group, backend).compute(MOST)
    return {name: found[name] for name in names}


def test_a_group_finds_what_each_of_its_metrics_finds_alone(each: Each) -> None:
    """Also where ranks have the metrics in different orders."""
    alone = {name: case.alone(range(MOST)) for name, case in METRICS.items()}
    each(
        st.tuples(st.integers(0, 999), st.integers(0, 3), st.integers(3, MOST)),
        grouped,
        lambda _: alone,
        split=8,
    )


def kept(backend: Any, drawn: tuple[list[int], int, Any]) -> Any:
    import torch
    import torchmetrics

    class Kept(torchmetrics.Metric):  # type: ignore[misc]
        """A class that keeps the entries above 0 of each batch, as those do that ignore labels."""

        def __init__(self) -> None:
            super().__init__()
            self.add_state("kept", [], dist_reduce_fx="cat")

        def update(self, values: Any) -> None:
            self.kept.append(values[values > 0])

        def compute(self) -> Any:
            return torch.cat(list(self.kept)) if isinstance(self.kept, list) else self.kept

    values, batch_size, leases = drawn
    found = evaluate(
        lambda batch: batch,
        np.array(values),
        {"kept": from_torchmetrics(Kept())},
        backend,
        batch_size,
        update=lambda outputs, batch: (outputs,),
        leases=leases,
    )
    return found.metrics["kept"].reshape(-1).tolist()  # of one entry, torchmetrics makes a scalar


@needs("torch", "torchmetrics")
@pytest.mark.world_sizes(2, 3)
def test_entries_of_torchmetrics_are_in_the_order_of_the_data_set(each: Each) -> None:
    """Of a class, too, that keeps another number of entries than a batch has samples."""
    each(
        st.tuples(
            st.lists(st.integers(-3, 9), min_size=9, max_size=30),
            st.integers(1, 6),
            st.sampled_from([None, Leases()]),
        ),
        kept,
        lambda drawn: [value for value in drawn[0] if value > 0],
        split=8,
    )
