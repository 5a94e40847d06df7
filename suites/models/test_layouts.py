"""Flax and Keras get every weight, in their own layout."""

from __future__ import annotations

import numpy as np
from disteval.models import default_weights

from suites.helpers.models import to_channels_last
from suites.helpers.needs import framework, needs


def test_a_layout_keeps_every_number_in_its_place() -> None:
    kernel = np.arange(36, dtype=np.float32).reshape(2, 3, 3, 2)
    moved = to_channels_last(kernel)
    assert (moved.shape, moved.flags.c_contiguous) == ((3, 2, 3, 2), True)
    for place in np.ndindex(*moved.shape):
        height, width, inside, outside = place
        assert moved[place] == kernel[outside, inside, height, width]
    np.testing.assert_array_equal(to_channels_last(kernel[:, :, 0, 0]), kernel[:, :, 0, 0].T)
    np.testing.assert_array_equal(to_channels_last(kernel[0, 0, 0]), kernel[0, 0, 0])


@needs("flax", "jax")
def test_flax_gets_every_weight_and_knows_each_by_name() -> None:
    jax = framework("jax")
    from disteval.models.resnet18_jax import ResNet18, variables

    given = variables(default_weights())
    made = jax.eval_shape(ResNet18().init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32))
    assert jax.tree.map(np.shape, given) == jax.tree.map(lambda leaf: leaf.shape, dict(made))


@needs("tensorflow")
def test_keras_holds_every_weight_under_its_name() -> None:
    from disteval.models.resnet18_tensorflow import build

    weights = default_weights()
    layers = {layer.name: layer.get_weights() for layer in build(weights).layers}
    total = sum(array.size for arrays in layers.values() for array in arrays)
    assert total == sum(array.size for array in weights.values())
    found = to_channels_last(weights["layer2.0.downsample.0.weight"])
    np.testing.assert_array_equal(layers["layer2.0.downsample.0"][0], found)
