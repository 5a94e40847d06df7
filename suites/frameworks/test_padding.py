"""Batches of any size run on any number of devices, and no row of padding is ever seen."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import UsageError
from disteval.padding import pad_shard_unpad
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import JAX_DEVICES, framework, needs

DTYPES = ["float32", "uint8", "bfloat16", "int32"]


@pytest.fixture(scope="module")
def jax() -> Any:
    """Return JAX with eight virtual CPU devices."""
    jax = framework("jax")
    assert jax.local_device_count() == JAX_DEVICES
    return jax


def rows(jax: Any, size: int, dtype: str, width: int = 3) -> Any:
    return np.arange(size * width).reshape(size, width).astype(jax.numpy.dtype(dtype))


def over(jax: Any, devices: int) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("batch",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@needs("jax", "flax")
@settings(max_examples=15)
@given(
    size=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    least=st.none() | st.integers(1, 7),
    devices=st.integers(1, JAX_DEVICES),
)
def test_it_agrees_with_flax(
    jax: Any, size: int, dtype: str, least: int | None, devices: int
) -> None:
    flax = framework("flax.jax_utils")
    seen: list[Any] = []

    def fn(scale: Any, batch: Any, *, extra: Any) -> Any:
        seen.append(jax.tree.map(np.shape, (batch, extra)))
        return {"sum": batch["x"] * scale + extra, "same": batch["y"], "like x": batch["z"]}

    x = rows(jax, size, dtype)
    batch, extra = {"x": x, "y": np.arange(size, dtype=np.int32), "z": x[::-1].copy()}, x[:, :1]
    scale = jax.numpy.ones((), x.dtype)
    ours = pad_shard_unpad(fn, devices=jax.devices()[:devices])
    found = ours(scale, batch, extra=extra, min_device_batch=least)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flax.jax, "local_device_count", lambda: devices)
        theirs = flax.pad_shard_unpad(fn)
        expected = theirs(scale, batch, extra=extra, min_device_batch=least)
    assert seen[0] == seen[1]
    jax.tree.map(same, found, expected)


@needs("jax")
def test_jit_over_a_mesh_sees_the_same_rows(jax: Any) -> None:
    double = pad_shard_unpad(jax.jit(lambda x: x + x), (), sharding=over(jax, 3))
    for size, dtype in zip((1, 3, 17, 40), DTYPES, strict=True):
        x = rows(jax, size, dtype)
        same(double(x), x + x)


def count(jax: Any, x: Any, mask: Any) -> Any:
    return (x.reshape(-1, x.shape[-1]) * mask.reshape(-1, 1)).sum(), mask.sum()


@needs("jax")
@pytest.mark.parametrize("way", ["pmap", "mesh"])
def test_the_mask_leaves_padding_out_of_counts_and_one_trace_serves_all_sizes(
    jax: Any, way: str
) -> None:
    traces = []

    def step(x: Any, *, mask: Any) -> Any:
        traces.append(x.shape)
        total, real = count(jax, x, mask)
        if way == "pmap":
            return jax.lax.psum((total, real), "batch")
        return total, real

    if way == "pmap":
        fn = jax.pmap(step, axis_name="batch")
        counting = pad_shard_unpad(fn, (), static_return=True, mask="mask")
    else:
        sharding = over(jax, JAX_DEVICES)
        counting = pad_shard_unpad(
            jax.jit(step), (), static_return=True, mask="mask", sharding=sharding
        )
    for size in (40, 1, 7, 8, 9, 39, 40, 16):
        x = rows(jax, size, "float32") + 1
        total, real = (np.ravel(out)[0] for out in counting(x, min_device_batch=5))
        assert (total, real) == (x.sum(), size)
    assert len(traces) == 1


@needs("jax")
def test_a_result_is_not_written_over_by_the_next_batch(jax: Any) -> None:
    same_again = pad_shard_unpad(lambda x: x, (), devices=jax.devices()[:1])
    first = same_again(np.arange(5, dtype=np.int32), min_device_batch=8)
    same_again(np.full(6, 99, dtype=np.int32), min_device_batch=8)
    np.testing.assert_array_equal(first, np.arange(5))


@needs("jax")
def test_padding_holds_nothing_of_the_batch_before(jax: Any) -> None:
    seen = []
    look = pad_shard_unpad(lambda x: seen.append(np.array(x)) or x, (), devices=jax.devices()[:1])
    for size in (7, 5):
        look(np.full(size, 99, dtype=np.int32), min_device_batch=8)
    assert seen[1].tolist() == [[99] * 5 + [0] * 3]


@needs("jax")
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, r"'y'.* 3 .*'x'.* 4"),
        ({"x": np.zeros((4, 2)), "y": 1.5}, r"1\['y'\].* 1\.5"),
        ({"x": np.zeros((0, 2))}, r"1\['x'\].*empty"),
        ({}, "no array"),
    ],
)
def test_what_cannot_be_sharded_is_named(jax: Any, batch: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pad_shard_unpad(lambda params, batch: batch)(None, batch)


@needs("jax")
def test_a_mask_of_the_callers_own_is_not_replaced(jax: Any) -> None:
    counting = pad_shard_unpad(lambda x, *, mask: mask.sum(), (), static_return=True, mask="mask")
    with pytest.raises(UsageError, match="'mask'"):
        counting(np.ones((4, 2)), mask=np.array([True, True, False, False]))


@needs("jax")
def test_one_static_argument_needs_no_list(jax: Any) -> None:
    batch = rows(jax, 3, "float32")
    fn = pad_shard_unpad(lambda factor, x, *, train, trained: x * factor, 0, "trained")
    same(fn(2.0, batch, train=batch, trained=3), 2 * batch)
