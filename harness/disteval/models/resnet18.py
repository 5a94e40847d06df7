"""ResNet-18, independent of any framework: its parameters, its pictures, and its folded form.

The architecture is that of He et al., "Deep Residual Learning for Image Recognition" (2015), and
the names are torchvision's, so that weights can be exchanged with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_CLASSES = 10
BLOCKS = tuple(
    (f"layer{stage}.{block}", channels, 2 if stage > 1 and block == 0 else 1)
    for stage, channels in enumerate((64, 128, 256, 512), start=1)
    for block in (0, 1)
)
"""The name, the channels and the stride of each residual block, in order."""

Shapes = dict[str, tuple[int, ...]]


def trunk(x: Any, conv_norm: Callable[..., Any], relu: Callable[..., Any], pool: Any) -> Any:
    """Return what the network computes before the mean and the last layer, in any framework.

    Args:
        x: The pictures.
        conv_norm: Returns a convolution and its normalisation, given the names of both, their
            input, the number of output channels, the side of the kernel and the stride.
        relu: Returns its input without negative values.
        pool: Returns the maxima of 3x3 positions in steps of 2.
    """
    x = pool(relu(conv_norm("conv1", "bn1", x, 64, 7, 2)))
    inputs = 64
    for name, channels, stride in BLOCKS:
        shortcut = x
        if inputs != channels:
            names = f"{name}.downsample.0", f"{name}.downsample.1"
            shortcut = conv_norm(*names, x, channels, 1, stride)
        x = relu(conv_norm(f"{name}.conv1", f"{name}.bn1", x, channels, 3, stride))
        x = relu(conv_norm(f"{name}.conv2", f"{name}.bn2", x, channels, 3, 1) + shortcut)
        inputs = channels
    return x


def parameter_shapes(num_classes: int = NUM_CLASSES) -> Shapes:
    """Return the shape of every parameter, in order; convolutions are (out, in, height, width)."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    inputs = 64
    for name, channels, _ in BLOCKS:
        shapes[f"{name}.conv1.weight"] = (channels, inputs, 3, 3)
        shapes |= _norm(f"{name}.bn1", channels)
        shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
        shapes |= _norm(f"{name}.bn2", channels)
        if inputs != channels:
            shapes[f"{name}.downsample.0.weight"] = (channels, inputs, 1, 1)
            shapes |= _norm(f"{name}.downsample.1", channels)
        inputs = channels
    return shapes | {"fc.weight": (num_classes, inputs), "fc.bias": (num_classes,)}


def buffer_shapes() -> Shapes:
    """Return the shape of every running statistic of the batch normalisations, in order."""
    return {
        name.replace(".weight", f".{statistic}"): shape
        for name, shape in parameter_shapes().items()
        if name.endswith(".weight") and len(shape) == 1
        for statistic in ("running_mean", "running_var")
    }


def to_channels_last(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Convert a weight from torch's layout to that of Flax and Keras: (height, width, in, out)."""
    return np.ascontiguousarray(array.transpose((2, 3, 1, 0) if array.ndim == 4 else None))


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


_MEAN = (0.4914, 0.4822, 0.4465)  # CIFAR-10's training split, per channel, of pixels from 0 to 1
_STD = (0.2470, 0.2435, 0.2616)

OFFSET: npt.NDArray[np.float32] = np.array(_MEAN, dtype=np.float32) * np.float32(255)
"""The number subtracted from a pixel of each channel, float32 of shape (3,)."""

SCALE: npt.NDArray[np.float32] = 1 / (np.array(_STD, dtype=np.float32) * np.float32(255))
"""The factor of the difference in each channel, float32 of shape (3,)."""


def preprocess(images: Any) -> Any:
    """Normalise pictures, uint8 of shape (N, 3, H, W), to float32; an array of NumPy or of JAX.

    It takes one subtraction and one multiplication, each correctly rounded, so results are unique.
    """
    return (images.astype(np.float32) - OFFSET[:, None, None]) * SCALE[:, None, None]


EPSILON = 1e-5
"""The number added to a running variance, in these models as in torchvision's."""

Arrays = Mapping[str, npt.NDArray[np.float32]]


def is_folded(weights: Arrays) -> bool:
    """Return whether the batch normalisations are folded into the convolutions."""
    return "conv1.bias" in weights


def fold_norms(weights: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """Fold each batch normalisation of ResNet-18 into its convolution, as a scale and a bias.

    The network computes the same function with fewer passes over memory. Each weight is scaled in
    float64 and rounded once, so scores change by rounding only, and in the same way at every world
    size. With the default weights they change by up to 2e-4 of a sample's largest score, which
    changes the predicted class of no embedded picture.

    Args:
        weights: The weights, from `default_weights` or `load_weights` of `disteval.models`.

    Returns:
        The weights with a ``bias`` for each convolution and without normalisations; or unchanged
        weights, if float32 can't hold the folded ones.
    """
    folded = {name: array for name, array in weights.items() if name.startswith("fc.")}
    for name, kernel in weights.items():
        if kernel.ndim != 4:
            continue
        conv = name.removesuffix(".weight")
        norm = _norm_after(conv)
        gamma, beta, mean, variance = (
            weights[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        with np.errstate(all="ignore"):  # the results are checked below
            scale = gamma / np.sqrt(variance + EPSILON)
            bias = (beta - mean * scale).astype(np.float32)
            scaled = (kernel * scale[:, None, None, None]).astype(np.float32)
        if not (np.isfinite(scaled).all() and np.isfinite(bias).all()):
            return dict(weights)
        folded |= {name: scaled, f"{conv}.bias": bias}
    return folded


def _norm_after(conv: str) -> str:
    if conv.endswith("downsample.0"):
        return conv.removesuffix("0") + "1"
    return conv.replace("conv", "bn")
