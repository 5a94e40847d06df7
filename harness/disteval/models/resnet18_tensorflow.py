"""ResNet-18 in Keras over TensorFlow, its layers under torchvision's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import Input, Model, Sequential, config, layers

from disteval.errors import UsageError
from disteval.models.resnet18 import (
    EPSILON,
    NUM_CLASSES,
    OFFSET,
    SCALE,
    fold_norms,
    is_folded,
    to_channels_last,
    trunk,
)

# The names that a layer's variables have in torch, in Keras's order.
_ORDER = {
    "Conv2D": ("weight", "bias"),
    "Dense": ("weight", "bias"),
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"),
}


def build(weights: Mapping[str, npt.NDArray[np.float32]], dtype: str = "float32") -> Any:
    """Build the network with these weights, folded or not: (N, 32, 32, 3) to scores (N, 10)."""
    before = config.dtype_policy()
    config.set_dtype_policy(dtype)  # for the layers that are made from here on
    try:
        model = _build(is_folded(weights))
    finally:
        config.set_dtype_policy(before)
    for layer in model.layers:
        names = [f"{layer.name}.{name}" for name in _ORDER.get(type(layer).__name__, ())]
        # A convolution has a bias if a normalisation was folded into it.
        layer.set_weights([to_channels_last(weights[name]) for name in names if name in weights])
    return model


def _build(folded: bool) -> Any:
    pictures = Input((32, 32, 3))
    # Padding with zeros is right, because nothing is below zero after the ReLU.
    pool = Sequential([layers.ZeroPadding2D(1), layers.MaxPooling2D(3, 2)])
    x = trunk(pictures, partial(_conv_norm, folded), layers.ReLU(), pool)
    return Model(pictures, layers.Dense(NUM_CLASSES, name="fc")(layers.GlobalAveragePooling2D()(x)))


def _conv_norm(
    folded: bool, conv: str, norm: str, x: Any, channels: int, size: int, stride: int
) -> Any:
    # The same padding on both sides; Keras's "same" puts more of it at the end.
    padded = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
    x = layers.Conv2D(channels, size, stride, use_bias=folded, name=conv)(padded)
    return x if folded else layers.BatchNormalization(epsilon=EPSILON, name=norm)(x, training=False)


def preprocess(images: tf.Tensor) -> tf.Tensor:
    """Normalise uint8 pictures (N, 3, H, W), as `resnet18.preprocess` does."""
    return (tf.cast(images, tf.float32) - OFFSET[:, None, None]) * SCALE[:, None, None]


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]],
    device: str = "cpu",
    *,
    exact: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Callable[[npt.NDArray[np.uint8]], tf.Tensor]:
    """Build the function that `disteval.evaluate` calls for each batch.

    The arguments and the function are those of `disteval.models.resnet18_torch.make_predict`, with
    arrays of TensorFlow.

    Raises:
        UsageError: TensorFlow has no such device here.
    """
    kind, _, number = device.partition(":")
    try:
        local = tf.config.list_logical_devices({"cpu": "CPU", "cuda": "GPU"}[kind])
        name = local[int(number or 0)].name
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(f"TensorFlow has no device {device!r} here") from error
    with tf.device(name):
        model = build(weights if exact else fold_norms(weights), dtype)

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 32, 32], tf.uint8)])  # type: ignore[untyped-decorator]
    def forward(images: tf.Tensor) -> tf.Tensor:
        pictures = tf.cast(tf.transpose(preprocess(images), (0, 2, 3, 1)), dtype)
        return model(pictures, training=False)

    def predict(images: npt.NDArray[np.uint8]) -> tf.Tensor:
        with tf.device(name):
            return forward(tf.constant(images))

    return predict
