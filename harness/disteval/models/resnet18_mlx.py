"""ResNet-18 in MLX, its parameters under torchvision's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import product
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.models.resnet18 import (
    EPSILON,
    OFFSET,
    SCALE,
    fold_norms,
    to_channels_last,
    trunk,
)


class ResNet18:
    """The 18-layer residual network of He et al. (2015), for evaluation.

    Args:
        weights: The weights, folded or not, in the layout of `to_channels_last`.
        convolve: The function that computes a convolution, see `convolve_on_cpu`.
    """

    def __init__(
        self,
        weights: Mapping[str, mx.array],
        convolve: Callable[[mx.array, mx.array, int], mx.array],
    ) -> None:
        self._weights = weights
        self._convolve = convolve

    def __call__(self, x: mx.array) -> mx.array:
        """Map pictures (N, H, W, 3) to scores (N, num_classes)."""
        # Padding with zeros is right, because nothing is below zero after the ReLU.
        x = trunk(x, self._conv_norm, _relu, lambda x: reduce(mx.maximum, _shifted(x, 3, 2)))
        return x.mean(axis=(1, 2)) @ self._weights["fc.weight"] + self._weights["fc.bias"]

    def _conv_norm(
        self, conv: str, norm: str, x: mx.array, _channels: int, _size: int, stride: int
    ) -> mx.array:
        x = self._convolve(x, self._weights[f"{conv}.weight"], stride)
        if f"{conv}.bias" in self._weights:
            return x + self._weights[f"{conv}.bias"]
        gamma, beta, mean, variance = (
            self._weights[f"{norm}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) * (gamma * mx.rsqrt(variance + EPSILON)) + beta


def convolve(x: mx.array, kernel: mx.array, stride: int) -> mx.array:
    """Convolve as MLX does; arguments and result are those of `convolve_on_cpu`."""
    return mx.conv2d(x, kernel.transpose(3, 0, 1, 2), stride, kernel.shape[0] // 2)


def convolve_on_cpu(x: mx.array, kernel: mx.array, stride: int) -> mx.array:
    """Convolve by matrix products without a transposed operand.

    MLX's own convolution on a CPU transposes the kernel in the product, for which the BLAS library
    of its Linux wheel takes more than twice as long; and it multiplies the padding, which is most
    of the picture in the last two stages of this network.

    Args:
        x: The pictures (N, H, W, inputs).
        kernel: The kernel (side, side, inputs, outputs); its side is odd, and it is padded by half.
        stride: The distance of two outputs, in pixels.

    Returns:
        The convolved pictures (N, H / stride, W / stride, outputs).
    """
    count, height, width, inputs = x.shape
    side, outputs = kernel.shape[0], kernel.shape[3]
    size = -(-height // stride), -(-width // stride)
    if side * side <= height * width:
        under = mx.concatenate(list(_shifted(x, side, stride)), axis=3)
        found = under.reshape(-1, side * side * inputs) @ kernel.reshape(-1, outputs)
        return found.reshape(count, *size, outputs)
    pixels = []
    for top, left in product(*(range(-(side // 2), n * stride - side // 2, stride) for n in size)):
        rows = slice(max(top, 0), min(top + side, height))
        columns = slice(max(left, 0), min(left + side, width))
        part = kernel[
            rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
        ].reshape(-1, outputs)
        pixels.append(x[:, rows, columns].reshape(count, len(part)) @ part)
    return mx.stack(pixels, axis=1).reshape(count, *size, outputs)


def _shifted(x: mx.array, side: int, stride: int) -> Iterator[mx.array]:
    """Yield for each place of a kernel the pixels that meet it, padded by half of its side."""
    pad = (side // 2, side // 2)
    high, wide = (-(-n // stride) * stride for n in x.shape[1:3])
    x = mx.pad(x, [(0, 0), pad, pad, (0, 0)])
    for top, left in product(range(side), repeat=2):
        yield x[:, top : top + high : stride, left : left + wide : stride]


def _relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def preprocess(images: mx.array) -> mx.array:
    """Normalise uint8 pictures (N, 3, H, W), as `resnet18.preprocess` does."""
    offset, scale = (mx.array(values)[:, None, None] for values in (OFFSET, SCALE))
    return (images.astype(mx.float32) - offset) * scale


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]],
    device: str = "cpu",
    *,
    exact: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Callable[[npt.NDArray[np.uint8]], mx.array]:
    """Build the function that `disteval.evaluate` calls for each batch.

    The arguments and the function are those of `disteval.models.resnet18_torch.make_predict`, with
    arrays of MLX.

    Raises:
        UsageError: MLX has no such device here.
    """
    target = _device(device)
    weights = weights if exact else fold_norms(weights)
    kind = getattr(mx, dtype)
    with mx.stream(target):
        held = {
            name: mx.array(to_channels_last(array)).astype(kind) for name, array in weights.items()
        }
        mx.eval(held)
    model = ResNet18(held, convolve_on_cpu if target.type == mx.cpu else convolve)

    def predict(images: npt.NDArray[np.uint8]) -> mx.array:
        with mx.stream(target):
            pictures = preprocess(mx.array(images)).transpose(0, 2, 3, 1).astype(kind)
            scores = model(pictures)
            mx.async_eval(scores)
            return scores

    return predict


def _device(name: str) -> Any:
    kind, _, number = name.partition(":")
    found = {"cpu": mx.cpu, "cuda": mx.gpu}.get(kind)
    if found is not None and (number or "0").isdecimal():
        device = mx.Device(found, int(number or 0))
        if mx.is_available(device):
            return device
    raise UsageError(f"MLX has no device {name!r} here")
