"""The array operations that metrics need, for arrays of every framework, and errors about them.

No framework is imported here: an array can't exist before its framework was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_batch: ContextVar[tuple[str, Any]] = ContextVar("batch", default=("the metric", None))
"""The name of the metric that gets a batch, and the ids of the batch."""


def kind_of(array: Any) -> str:
    """Return ``torch``, ``jax``, ``tensorflow`` or ``numpy``, which includes lists."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.is_tensor(array):
        return "tensorflow"
    return "numpy"


def shape_of(array: Any, what: str = "values") -> tuple[int, ...]:
    """Return the shape of an array of any framework, or of a list; UsageError if it has none."""
    return tuple(array.shape) if hasattr(array, "shape") else to_numpy(array, what).shape


def to_numpy(array: Any, what: str = "values") -> Array:
    """Convert an array of any framework, or a list of numbers, to NumPy.

    bfloat16, which NumPy lacks, becomes float32. An array that is in the host's memory may be
    returned without a copy. UsageError calls the array ``what``, if it holds neither real numbers
    nor truth values.
    """
    if kind_of(array) == "torch":
        array = array.detach().to_dense()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()
        array = array.cpu().numpy()
    if str(getattr(array, "dtype", "")) == "mlx.core.bfloat16":  # NumPy refuses its buffer
        array = array.astype(sys.modules["mlx.core"].float32)
    if array is None or isinstance(array, Mapping | Set | Iterator):
        kind = "None" if array is None else f"a value of type {type(array).__name__}"
        raise UsageError(f"{what} must be an array or a list of numbers, not {kind}")
    # NumPy imports numpy.ma when it is first used, which takes a moment, so only for a subclass.
    is_subclass = isinstance(array, np.ndarray) and type(array) is not np.ndarray
    if is_subclass and np.ma.is_masked(array):
        raise UsageError(
            f"{what} must be an array without masked elements, because NumPy drops the mask; leave "
            f"out those samples, or give them a value with filled()"
        )
    try:
        found = np.asarray(array)
    except ValueError:
        sizes = [len(part) if hasattr(part, "__len__") else 0 for part in array]
        other = next((at for at, size in enumerate(sizes) if size != sizes[0]), None)
        where = "" if other is None else f": {sample(other)} has {sizes[other]}, not {sizes[0]}"
        raise UsageError(
            f"{what} must be an array, not a {type(array).__name__} whose parts have different "
            f"shapes{where}"
        ) from None
    if found.dtype.name == "bfloat16":
        found = found.astype(np.float32)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"{what} must be real numbers, not of {found.dtype}{_odd_one(found)}")
    return found


def column_of(values: Any, what: str) -> Array:
    """Convert numbers of any framework, of shape (N,) or (N, 1), to NumPy's of shape (N,)."""
    found = to_numpy(values, what)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UsageError(f"{what} must have shape (N,) or (N, 1), not {found.shape}")
    return found


def _odd_one(found: Array) -> str:
    """Say which value is the first that is no real number."""
    values = found.reshape(-1).tolist()
    at = next((at for at, value in enumerate(values) if not isinstance(value, Real)), None)
    if at is None or found.ndim == 0:
        return ""
    return f": {sample(at // (found.size // len(found)))} has {values[at]!r:.100}"


def rank_labels(scores: Any, labels: Numbers) -> tuple[Any, Any, Any, bool]:
    """Rank each sample's label among its scores, on the device that holds the scores.

    A label's rank is the number of classes before it, if classes are ordered by falling score and,
    at equal scores, by rising index.

    Args:
        scores: Shape (N, C), of any framework and real dtype.
        labels: int64 of shape (N,), each from 0 to C - 1.

    Returns:
        The ranks, integers; the labels' own scores; and which rows hold NaN, whose ranks mean
        nothing: each of shape (N,), on the device. And whether it may still be computing them.
    """
    kind, dtype, is_late = kind_of(scores), str(getattr(scores, "dtype", "")), True
    if "complex" in dtype or "str" in dtype:
        raise UsageError(f"predictions must be real numbers, not of {dtype}")
    if kind == "tensorflow":
        return *_rank_tensorflow(scores, labels), is_late
    if kind == "torch":
        torch, is_late = sys.modules["torch"], scores.device.type != "cpu"
        scores = scores.detach().to_dense()
        index = torch.from_numpy(labels).to(scores.device)[:, None]
        own = scores.gather(1, index)
        earlier = torch.arange(scores.shape[1], device=scores.device) < index
    elif kind == "jax":
        jnp = sys.modules["jax"].numpy
        # int32 holds any class index, and JAX has no int64 unless it is told to.
        index = jnp.asarray(labels.astype(np.int32))[:, None]  # it follows the scores' device
        own = jnp.take_along_axis(scores, index, axis=1)
        earlier = jnp.arange(scores.shape[1]) < index
    else:
        scores, index, is_late = to_numpy(scores, "predictions"), labels[:, None], False
        own = np.take_along_axis(scores, index, axis=1)
        earlier = np.arange(scores.shape[1]) < index
    before = (scores > own) | ((scores == own) & earlier)
    return before.sum(axis=1), own[:, 0], (scores != scores).any(axis=1), is_late


def _rank_tensorflow(scores: Any, labels: Numbers) -> tuple[Any, Any, Any]:
    tf = sys.modules["tensorflow"]
    if scores.dtype == tf.bool:  # has no order in TensorFlow
        scores = tf.cast(scores, tf.int8)
    with tf.device(scores.device):
        index = tf.constant(labels)[:, None]
        own = tf.gather(scores, index, axis=1, batch_dims=1)
        earlier = tf.range(scores.shape[1], dtype=tf.int64) < index
        before = tf.logical_or(scores > own, tf.logical_and(tf.equal(scores, own), earlier))
        missing = tf.reduce_any(tf.not_equal(scores, scores), axis=1)
        return tf.math.count_nonzero(before, axis=1), own[:, 0], missing


@contextmanager
def naming(metric: str | None = None, ids: Any = None) -> Iterator[None]:
    """Name a metric, and samples by ids, in errors of a batch that is added; None changes none."""
    outer = _batch.get()
    token = _batch.set((metric or outer[0], outer[1] if ids is None else ids))
    try:
        yield
    finally:
        _batch.reset(token)


def sample(row: int) -> str:
    """Name the sample that has a row of the batch."""
    _, ids = _batch.get()
    with suppress(Exception):  # ids of a wrong kind or length are an error of their own
        if hasattr(ids, "rows"):  # SampleRows
            ids = np.repeat(ids.ids, ids.rows)
        return f"sample {int(ids[row])}"
    return f"row {row} of the batch"


def refuse(must: str, values: Any, wrong: Any, remedy: str = "", rows: Any = None) -> None:
    """Raise UsageError if a value is wrong; it names the first one and its sample.

    Args:
        must: What the values must be.
        values: An array of shape (N, …).
        wrong: Which of them are wrong, in their shape.
        remedy: What to do.
        rows: The row of the batch that each of the N belongs to; None if each has one of its own.
    """
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        row = at[0] if rows is None else rows[at[0]]
        raise UsageError(f"{must}, but {sample(row)} has {values[at]}{remedy}")


def refuse_nan(what: str, values: Any, counted: Any = True) -> None:
    """Raise UsageError if values of shape (N, …) that are counted hold NaN, see `refuse_rows`."""
    missing = np.isnan(values) & counted
    if missing.any():
        refuse_rows(what, missing.reshape(len(missing), -1).any(axis=1))


def refuse_rows(what: str, missing: Any) -> None:
    """Raise UsageError if rows hold NaN, shape (N,); it says how many do, and names the first."""
    if missing.any():
        raise UsageError(
            f"{_batch.get()[0]} got NaN in {what}, in {np.count_nonzero(missing)} of "
            f"{len(missing)} rows of a batch, the first of which is "
            f"{sample(int(missing.argmax()))}; repair what computes them, or leave those samples "
            f"out"
        )
