"""ResNet-18 in Flax (linen), its modules under torchvision's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import linen as nn

from harness.errors import UsageError
from harness.models.layouts import to_channels_last
from harness.models.preprocess import OFFSET, SCALE
from harness.models.resnet18 import NUM_CLASSES, STAGES

_HIGHEST = jax.lax.Precision.HIGHEST  # float32 is float32, on accelerators too


class ResNet18(nn.Module):  # type: ignore[misc]
    """The 18-layer residual network of He et al. (2015), for evaluation."""

    num_classes: int = NUM_CLASSES

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map pictures (N, H, W, 3) to scores (N, num_classes)."""
        x = nn.relu(_norm("bn1", _conv("conv1", x, 64, 7, 2)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stage, (channels, stride) in enumerate(STAGES, start=1):
            x = _block(f"layer{stage}.0", x, channels, stride)
            x = _block(f"layer{stage}.1", x, channels, 1)
        return nn.Dense(self.num_classes, precision=_HIGHEST, name="fc")(x.mean(axis=(1, 2)))


def _conv(name: str, x: jax.Array, channels: int, size: int, stride: int) -> jax.Array:
    pad = size // 2
    return nn.Conv(
        channels,
        (size, size),
        stride,
        ((pad, pad), (pad, pad)),
        use_bias=False,
        precision=_HIGHEST,
        name=name,
    )(x)


def _norm(name: str, x: jax.Array) -> jax.Array:
    return nn.BatchNorm(use_running_average=True, epsilon=1e-5, name=name)(x)


def _block(name: str, x: jax.Array, channels: int, stride: int) -> jax.Array:
    """Two 3x3 convolutions and a shortcut."""
    shortcut = x
    if stride != 1 or x.shape[-1] != channels:
        shortcut = _conv(f"{name}.downsample.0", x, channels, 1, stride)
        shortcut = _norm(f"{name}.downsample.1", shortcut)
    x = nn.relu(_norm(f"{name}.bn1", _conv(f"{name}.conv1", x, channels, 3, stride)))
    x = _norm(f"{name}.bn2", _conv(f"{name}.conv2", x, channels, 3, 1))
    return nn.relu(x + shortcut)


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


def preprocess(images: jax.Array) -> jax.Array:
    """Normalise uint8 pictures (N, 3, H, W), as `preprocess.preprocess` does."""
    return (images.astype(jnp.float32) - OFFSET[:, None, None]) * SCALE[:, None, None]


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]], device: str = "cpu"
) -> Callable[[npt.NDArray[np.uint8]], jax.Array]:
    """Build the function that `harness.evaluate` calls for each batch.

    Args:
        weights: As of `harness.models.default_weights` or `harness.models.load_weights`.
        device: ``cpu``, or ``cuda`` with a number, such as ``cuda:0``.

    Returns:
        A function of uint8 pictures of shape (N, 3, 32, 32) to float32 scores of shape (N, 10).

    Raises:
        UsageError: JAX has no such device here.
    """
    kind, _, number = device.partition(":")
    try:
        target = jax.local_devices(backend=kind)[int(number or 0)]
    except (RuntimeError, IndexError) as error:
        raise UsageError(f"JAX has no device {device!r} here ({error})") from error
    model = ResNet18()
    held = jax.device_put(variables(weights), target)

    @jax.jit  # type: ignore[untyped-decorator]
    def forward(held: Any, images: jax.Array) -> jax.Array:
        return model.apply(held, preprocess(images).transpose(0, 2, 3, 1))

    # A copy: the array is used again for the next batch, and JAX may not have read it by then.
    return lambda images: forward(held, jax.device_put(images.copy(), target))
