"""The array operations that metrics need, for arrays of every framework.

No framework is imported here: an array can't exist before its framework was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError


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


def shape_of(array: Any) -> tuple[int, ...]:
    """Return the shape of an array of any framework, or of a nested list.

    Raises:
        UsageError: It is a list whose parts have different shapes, or nothing like an array.
    """
    return tuple(array.shape) if hasattr(array, "shape") else _as_numpy(array).shape


def to_numpy(array: Any) -> npt.NDArray[Any]:
    """Convert an array of any framework to NumPy; bfloat16, which NumPy lacks, becomes float32.

    An array that is in the host's memory may be returned without a copy.

    Raises:
        UsageError: The array holds neither real numbers nor truth values.
    """
    if kind_of(array) == "torch":
        array = array.detach().to_dense()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()
        array = array.cpu().numpy()
    if str(getattr(array, "dtype", "")) == "mlx.core.bfloat16":  # NumPy refuses its buffer
        array = array.astype(sys.modules["mlx.core"].float32)
    found = _as_numpy(array)
    if found.dtype.name == "bfloat16":
        found = found.astype(np.float32)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"expected an array of real numbers, not of {found.dtype}")
    return found


def _as_numpy(array: Any) -> npt.NDArray[Any]:
    if array is None or isinstance(array, Mapping | Set | Iterator):
        kind = "None" if array is None else f"a value of type {type(array).__name__}"
        raise UsageError(f"expected an array or a list of numbers, not {kind}")
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise UsageError(
            "expected an array without masked elements, because NumPy drops the mask; leave out "
            "those samples, or give them a value with filled()"
        )
    try:
        return np.asarray(array)
    except ValueError:
        raise UsageError(
            f"expected an array, not a {type(array).__name__} whose parts have different shapes"
        ) from None


def is_on_host(array: Any) -> bool:
    """Return whether an array can be read without waiting for a device."""
    kind = kind_of(array)
    return kind == "numpy" or (kind == "torch" and array.device.type == "cpu")


def rank_labels(scores: Any, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Rank each sample's label among its scores, on the device that holds the scores.

    A label's rank is the number of classes before it, if classes are ordered by falling score and,
    at equal scores, by rising index. A NaN comes after every number.

    Args:
        scores: Shape (N, C), of any framework and real dtype.
        labels: int64 of shape (N,), each from 0 to C - 1.

    Returns:
        The ranks, integers of shape (N,); and the labels' own scores, shape (N,). Both are on the
        device, which may still be computing them.
    """
    dtype = str(getattr(scores, "dtype", ""))
    if "complex" in dtype or "str" in dtype:
        raise UsageError(f"scores must be real numbers, not {dtype}")
    operations = {"torch": _rank_torch, "jax": _rank_jax, "tensorflow": _rank_tensorflow}
    return operations.get(kind_of(scores), _rank_numpy)(scores, labels)


# A comparison with NaN is false, so a NaN among the other scores never comes before the label. The
# rank of a label whose own score is NaN means nothing; callers look at the score.


def _rank_numpy(scores: Any, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    return _rank_along(np, to_numpy(scores), labels)


def _rank_jax(scores: Any, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    # int32 holds any class index, and JAX has no int64 unless it is told to.
    return _rank_along(sys.modules["jax"].numpy, scores, labels.astype(np.int32))


def _rank_along(numpy: Any, scores: Any, labels: npt.NDArray[Any]) -> tuple[Any, Any]:
    index = numpy.asarray(labels)[:, None]  # JAX's follows the scores to their device
    own = numpy.take_along_axis(scores, index, axis=1)
    earlier = numpy.arange(scores.shape[1]) < index
    return ((scores > own) | ((scores == own) & earlier)).sum(axis=1), own[:, 0]


def _rank_torch(scores: Any, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    scores = scores.detach().to_dense()
    index = torch.from_numpy(labels).to(scores.device)[:, None]
    own = scores.gather(1, index)
    earlier = torch.arange(scores.shape[1], device=scores.device) < index
    return ((scores > own) | ((scores == own) & earlier)).sum(dim=1), own[:, 0]


def _rank_tensorflow(scores: Any, labels: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    tf = sys.modules["tensorflow"]
    if scores.dtype == tf.bool:  # has no order in TensorFlow
        scores = tf.cast(scores, tf.int8)
    with tf.device(scores.device):
        index = tf.constant(labels)[:, None]
        own = tf.gather(scores, index, axis=1, batch_dims=1)
        earlier = tf.range(scores.shape[1], dtype=tf.int64) < index
        before = tf.logical_or(scores > own, tf.logical_and(tf.equal(scores, own), earlier))
        return tf.math.count_nonzero(before, axis=1), own[:, 0]
