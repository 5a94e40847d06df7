"""The names and shapes of ResNet-18's parameters, independent of any framework.

The architecture is that of He et al., "Deep Residual Learning for Image Recognition" (2015), and
the names are torchvision's, so that weights can be exchanged with it.
"""

from __future__ import annotations

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
