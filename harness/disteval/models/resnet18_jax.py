"""ResNet-18 in Flax (linen), its modules under torchvision's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import linen as nn

from disteval.errors import UsageError
from disteval.models.resnet18 import (
    EPSILON,
    NUM_CLASSES,
    fold_norms,
    is_folded,
    preprocess,
    to_channels_last,
    trunk,
)

_HIGHEST = jax.lax.Precision.HIGHEST  # float32 is float32, on accelerators too


class ResNet18(nn.Module):  # type: ignore[misc]
    """The 18-layer residual network of He et al. (2015), for evaluation.

    Attributes:
        num_classes: The number of classes, which is the number of scores for each picture.
        folded: Whether there are no batch normalisations, see `fold_norms`.
        convolve: The function that computes convolutions, the default or `convolve_on_cpu`.
    """

    num_classes: int = NUM_CLASSES
    folded: bool = False
    convolve: Callable[..., jax.Array] = jax.lax.conv_general_dilated

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map pictures (N, H, W, 3) to scores (N, num_classes)."""
        pool = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        x = trunk(x, self._conv_norm, nn.relu, pool)
        return nn.Dense(self.num_classes, precision=_HIGHEST, name="fc")(x.mean(axis=(1, 2)))

    def _conv_norm(
        self, conv: str, norm: str, x: jax.Array, channels: int, size: int, stride: int
    ) -> jax.Array:
        pad = size // 2
        padding = ((pad, pad), (pad, pad))
        options = {"use_bias": self.folded, "precision": _HIGHEST, "name": conv}
        options["conv_general_dilated"] = self.convolve
        x = nn.Conv(channels, (size, size), stride, padding, **options)(x)
        if self.folded:
            return x
        return nn.BatchNorm(use_running_average=True, epsilon=EPSILON, name=norm)(x)


def convolve_on_cpu(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Any, **options: Any
) -> jax.Array:
    """Convolve as this network does, in a form that XLA computes fast on a CPU.

    XLA exchanges the operands of a convolution whose kernel is larger than the picture, and for
    the exchanged form it has no fast code on a CPU: the last two stages of this network took it
    fifty times as long as their arithmetic needs. There each output pixel becomes one matrix
    product, of the part of the picture under the kernel with the part of the kernel over it.

    Args:
        x: The pictures (N, H, W, inputs).
        kernel: The kernel (side, side, inputs, outputs); its side is odd.
        strides: The distances of two outputs, in pixels.
        padding: Half of the kernel's side, on each side of a picture.
        options: Other arguments of `jax.lax.conv_general_dilated`.
    """
    (count, *size, _), (side, _, _, outputs) = x.shape, kernel.shape
    if side * side <= size[0] * size[1]:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    pixels = []
    starts = [
        range(-(side // 2), length - side // 2, stride)
        for length, stride in zip(size, strides, strict=True)
    ]
    for top, left in product(*starts):
        rows = slice(max(top, 0), min(top + side, size[0]))
        columns = slice(max(left, 0), min(left + side, size[1]))
        part = kernel[
            rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
        ].reshape(-1, outputs)
        under = x[:, rows, columns].reshape(count, len(part))
        pixels.append(jnp.dot(under, part, precision=options.get("precision")))
    return jnp.stack(pixels, axis=1).reshape(count, *map(len, starts), outputs)


def variables(weights: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Any]:
    """Arrange weights as Flax does: ``params`` and ``batch_stats``, a dict for each module."""
    found: dict[str, Any] = {"params": {}, "batch_stats": {}}
    for name, array in weights.items():
        module, _, leaf = name.rpartition(".")
        collection = "batch_stats" if leaf.startswith("running_") else "params"
        key = {"running_mean": "mean", "running_var": "var", "bias": "bias"}.get(leaf)
        if key is None:
            key = "scale" if array.ndim == 1 else "kernel"
        found[collection].setdefault(module, {})[key] = to_channels_last(array)
    return found


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]],
    device: str = "cpu",
    *,
    exact: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Callable[[npt.NDArray[np.uint8]], jax.Array]:
    """Build the function that `disteval.evaluate` calls for each batch.

    The arguments and the function are those of `disteval.models.resnet18_torch.make_predict`, with
    arrays of JAX.

    Raises:
        UsageError: JAX has no such device here.
    """
    kind, _, number = device.partition(":")
    try:
        target = jax.local_devices(backend=kind)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise UsageError(f"JAX has no device {device!r} here ({error})") from error
    if not exact:
        weights = fold_norms(weights)
    options = {"convolve": convolve_on_cpu} if target.platform == "cpu" else {}
    model = ResNet18(folded=is_folded(weights), **options)
    cast = jax.tree.map(lambda array: array.astype(dtype), variables(weights))
    held = jax.device_put(cast, target)

    @jax.jit  # type: ignore[untyped-decorator]
    def forward(held: Any, images: jax.Array) -> jax.Array:
        return model.apply(held, preprocess(images).transpose(0, 2, 3, 1).astype(dtype))

    return lambda images: forward(held, jax.device_put(images, target))
