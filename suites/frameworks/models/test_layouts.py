"""Weights keep every number when they are converted to another library's layout and back."""

from __future__ import annotations

import numpy as np
from disteval.models import default_weights
from disteval.models.layouts import from_channels_last, to_channels_last

from suites.requirements import framework


def test_a_layout_and_back_is_what_it_was() -> None:
    for name, array in default_weights().items():
        moved = to_channels_last(array)
        assert moved.flags.c_contiguous
        np.testing.assert_array_equal(from_channels_last(moved), array, err_msg=name)
    kernel = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    assert to_channels_last(kernel)[1, 0, 2, 1] == kernel[1, 2, 1, 0]


def test_flax_gets_every_weight_and_knows_each_by_name() -> None:
    jax = framework("jax")
    framework("flax")
    from disteval.models.resnet18_jax import ResNet18, variables

    given = variables(default_weights())
    made = jax.eval_shape(ResNet18().init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32))
    assert jax.tree.map(np.shape, given) == jax.tree.map(lambda leaf: leaf.shape, dict(made))


def test_keras_holds_every_weight_under_its_name() -> None:
    framework("tensorflow")
    from disteval.models.resnet18_tensorflow import build

    weights = default_weights()
    layers = {layer.name: layer.get_weights() for layer in build(weights).layers}
    total = sum(array.size for arrays in layers.values() for array in arrays)
    assert total == sum(array.size for array in weights.values())
    found = from_channels_last(layers["layer2.0.downsample.0"][0])
    np.testing.assert_array_equal(found, weights["layer2.0.downsample.0.weight"])
