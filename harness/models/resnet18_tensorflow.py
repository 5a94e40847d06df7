"""ResNet-18 in Keras over TensorFlow, its layers under torchvision's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import Input, Model, layers

from harness.errors import UsageError
from harness.models.layouts import to_channels_last
from harness.models.preprocess import OFFSET, SCALE
from harness.models.resnet18 import NUM_CLASSES, STAGES

# What a layer's variables are called in torch, in Keras's order.
_ORDER = {
    "Conv2D": ("weight",),
    "Dense": ("weight", "bias"),
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"),
}


def build(weights: Mapping[str, npt.NDArray[np.float32]]) -> Any:
    """Build the network with these weights: (N, 32, 32, 3) to scores (N, 10)."""
    pictures = Input((32, 32, 3))
    x = layers.ReLU()(_norm("bn1", _conv("conv1", pictures, 64, 7, 2)))
    # Zeros do for padding: nothing is below zero after the ReLU.
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, (channels, stride) in enumerate(STAGES, start=1):
        x = _block(f"layer{stage}.0", x, channels, stride)
        x = _block(f"layer{stage}.1", x, channels, 1)
    scores = layers.Dense(NUM_CLASSES, name="fc")(layers.GlobalAveragePooling2D()(x))
    model = Model(pictures, scores)
    for layer in model.layers:
        names = [f"{layer.name}.{name}" for name in _ORDER.get(type(layer).__name__, ())]
        layer.set_weights([to_channels_last(weights[name]) for name in names])
    return model


def _conv(name: str, x: Any, channels: int, size: int, stride: int) -> Any:
    # Padding on both sides alike; Keras's "same" puts more of it at the end.
    padded = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
    return layers.Conv2D(channels, size, stride, use_bias=False, name=name)(padded)


def _norm(name: str, x: Any) -> Any:
    return layers.BatchNormalization(epsilon=1e-5, name=name)(x, training=False)


def _block(name: str, x: Any, channels: int, stride: int) -> Any:
    """Two 3x3 convolutions and a shortcut."""
    shortcut = x
    if stride != 1 or x.shape[-1] != channels:
        shortcut = _conv(f"{name}.downsample.0", x, channels, 1, stride)
        shortcut = _norm(f"{name}.downsample.1", shortcut)
    x = layers.ReLU()(_norm(f"{name}.bn1", _conv(f"{name}.conv1", x, channels, 3, stride)))
    x = _norm(f"{name}.bn2", _conv(f"{name}.conv2", x, channels, 3, 1))
    return layers.ReLU()(layers.Add()([x, shortcut]))


def preprocess(images: tf.Tensor) -> tf.Tensor:
    """Normalise uint8 pictures (N, 3, H, W), as `preprocess.preprocess` does."""
    return (tf.cast(images, tf.float32) - OFFSET[:, None, None]) * SCALE[:, None, None]


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]], device: str = "cpu"
) -> Callable[[npt.NDArray[np.uint8]], tf.Tensor]:
    """Build the function that `harness.evaluate` calls for each batch.

    Args:
        weights: As of `harness.models.default_weights` or `harness.models.load_weights`.
        device: ``cpu``, or ``cuda`` with a number, such as ``cuda:0``.

    Returns:
        A function of uint8 pictures of shape (N, 3, 32, 32) to float32 scores of shape (N, 10).

    Raises:
        UsageError: TensorFlow has no such device here.
    """
    kind, _, number = device.partition(":")
    local = tf.config.list_logical_devices("GPU" if kind == "cuda" else "CPU")
    if int(number or 0) >= len(local):
        raise UsageError(f"TensorFlow has no device {device!r} here")
    name = local[int(number or 0)].name
    with tf.device(name):
        model = build(weights)

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 32, 32], tf.uint8)])  # type: ignore[untyped-decorator]
    def forward(images: tf.Tensor) -> tf.Tensor:
        return model(tf.transpose(preprocess(images), (0, 2, 3, 1)), training=False)

    def predict(images: npt.NDArray[np.uint8]) -> tf.Tensor:
        with tf.device(name):
            return forward(tf.constant(images))

    return predict
