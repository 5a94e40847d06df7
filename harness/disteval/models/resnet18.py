"""The names and shapes of ResNet-18's parameters, independent of any framework.

The architecture is that of He et al., "Deep Residual Learning for Image Recognition" (2015), and
the names are torchvision's, so that weights can be exchanged with it.
"""

from __future__ import annotations

NUM_CLASSES = 10
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""The channels and stride of the four stages, which have two blocks each."""

Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(num_classes: int = NUM_CLASSES) -> Shapes:
    """Return the shape of every parameter, in order; convolutions are (out, in, height, width)."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    inputs = 64
    for stage, (channels, stride) in enumerate(STAGES, start=1):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (channels, inputs, 3, 3)
            shapes |= _norm(f"{name}.bn1", channels)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            shapes |= _norm(f"{name}.bn2", channels)
            if block == 0 and (stride != 1 or inputs != channels):
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


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}
