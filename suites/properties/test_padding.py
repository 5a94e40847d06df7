"""Padding never counts: that of shares, of fixed shapes, of devices, and of torch's sampler."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import Coverage, ShardPlan, evaluate
from disteval.padding import in_step, pad_shard_unpad, with_infinite_padding
from disteval.world import World
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.properties.cases import METRICS, MOST, SAMPLES, Model, Numbers, array, error_of
from suites.properties.conftest import Each

MODES = st.sampled_from(["strided", "contiguous"])
IN_ORDER = [
    "accuracy", "AUROC", "confusion matrix", "entries", "mean", "regression", "weighted mean",
    "grouped accuracy",
]  # fmt: skip


def collected(name: str, arrays: str, backend: Any, drawn: tuple[int, Any, int]) -> Any:
    size, mode, batch_size = drawn
    case, metric = METRICS[name], METRICS[name].make()
    metric.dist_backend = backend
    metric.dist_collect_mode = {"strided": "unzip", "contiguous": "cat"}[mode]
    ids = ShardPlan(size, backend.world_size, backend.rank, mode, pad=True).indices
    for at in range(0, len(ids), batch_size):
        batch = ids[at : at + batch_size]
        named = {name: each[batch] for name, each in case.named.items()}
        metric.add(*(array(arrays, each[batch]) for each in case.args), **named)
    return metric.compute(size)


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_metric_without_ids_leaves_padding_out(each: Each, arrays: str, name: str) -> None:
    """Of the padded shares of samplers, given how many samples there are."""
    each(
        st.tuples(st.integers(2, MOST), MODES, st.integers(1, 9)),
        partial(collected, name, arrays),
        lambda drawn: METRICS[name].alone(range(drawn[0])),
        split=len(IN_ORDER),
    )


def called(kind: str, backend: Any, drawn: tuple[int, int]) -> Any:
    size, batch_size = drawn
    model, samples = Model(), SAMPLES[kind](size, "numpy")
    even_calls = True if kind == "shards" else None  # of which ranks tell each other
    found = evaluate(
        model, samples, {"numbers": Numbers()}, backend, batch_size, even_calls=even_calls
    )
    calls = backend.all_gather_object(len(model.calls))
    is_once = found.metrics["numbers"] == [*range(size)]
    return set(model.calls) <= {batch_size}, len(set(calls)), is_once


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.usefixtures("without_canary")
@pytest.mark.world_sizes(2, 3)
def test_a_model_is_called_equally_often_on_every_rank(each: Each, kind: str) -> None:
    """With batches of one shape: a model whose every call is a collective needs that."""
    each(
        st.tuples(st.integers(1, MOST), st.integers(1, 9)),
        partial(called, kind),
        lambda _: (True, 1, True),
        split=8,
    )


def sampled(backend: Any, drawn: tuple[int, int, bool]) -> Any:
    from torch.utils.data import DataLoader, DistributedSampler

    size, batch_size, drop_last = drawn
    sampler: Any = DistributedSampler(
        range(size), backend.world_size, backend.rank, shuffle=False, drop_last=drop_last
    )
    metric = METRICS["confusion matrix"].make()
    metric.dist_backend = backend
    coverage = Coverage(size, backend)
    for ids in DataLoader(range(size), batch_size, sampler=sampler):  # type: ignore[arg-type]
        METRICS["confusion matrix"].add(metric, ids.numpy())
        coverage.count(ids)
    found: list[Any] = []
    kind, _ = error_of(backend, lambda: found.append(metric.compute(size)))
    strict, _ = error_of(backend, coverage.certify)
    return found or kind, strict


@needs("torch")
def test_torchs_distributed_sampler_changes_no_result_or_is_refused(
    each: Each, world: World
) -> None:
    """The samples that it repeats count once; where it drops some, every rank says so."""

    def expected(drawn: tuple[int, int, bool]) -> Any:
        size, _, drop_last = drawn
        uneven = size % world.world_size > 0
        found = [METRICS["confusion matrix"].alone(range(size))]
        return "CoverageError" if uneven and drop_last else found, "CoverageError" * uneven

    drawn = st.tuples(st.integers(3, MOST), st.integers(1, 9), st.booleans())
    each(drawn, sampled, expected, split=2)


def over_devices(dtype: str, backend: Any, drawn: tuple[int, int | None]) -> Any:
    import jax
    import jax.numpy as jnp

    size, least = drawn
    rows = np.arange(1, 3 * size + 1).reshape(size, 3).astype(jnp.dtype(dtype))
    seen: list[Any] = []

    def model(batch: Any, *, mask: Any) -> Any:
        seen.append((float(np.sum(mask)), batch.shape[0], float((batch * mask[..., None]).sum())))
        return batch + batch

    padded = pad_shard_unpad(model, (), mask="mask")
    found = padded(rows, min_device_batch=least)
    [(real, devices, total)] = seen
    right = np.array_equal(found, rows + rows) and found.dtype == rows.dtype
    return right, real, devices == jax.local_device_count(), total == float(rows.sum())


@needs("jax")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_rows_are_spread_over_devices_and_come_back_without_padding(each: Each, dtype: str) -> None:
    """Over as many devices of JAX as the rank has, whatever the number of rows is."""
    each(
        st.tuples(st.integers(1, MOST), st.none() | st.integers(1, 7)),
        partial(over_devices, dtype),
        lambda drawn: (True, float(drawn[0]), True, True),
        split=8,
    )


def stepped(arrays: str, backend: Any, drawn: tuple[list[int], int]) -> Any:
    have, rows = drawn
    count = have[backend.rank % len(have)]
    batch = [{"x": array(arrays, np.full((rows, 2), n, np.float32))} for n in range(1, count + 1)]
    like = {"x": array(arrays, np.zeros((rows, 2), np.float32))}
    taken = [
        (np.asarray(each["x"]), np.asarray(each["mask"]))
        for each in in_step(with_infinite_padding(batch, like=like), backend)
    ]
    steps = backend.all_gather_object(len(taken))
    most = max(have[rank % len(have)] for rank in range(backend.world_size))
    real = sum(int(mask.sum()) for _, mask in taken) == count * rows
    zero = all(not x[~mask].any() for x, mask in taken)
    return steps == [most] * backend.world_size, real, zero


def test_ranks_with_different_numbers_of_batches_take_equally_many_steps(
    each: Each, arrays: str
) -> None:
    """Those that have fewer add padding of zeros, which their mask leaves out."""
    each(
        st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 3)),
        partial(stepped, arrays),
        lambda _: (True, True, True),
        split=2,
    )
