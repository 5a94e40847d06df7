"""JAX and MLX compute convolutions on a CPU in a form that is fast there."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from disteval.data import load_embedded
from disteval.models import default_weights

from suites.helpers.needs import framework, needs

SIZES = (1, 1), (1, 4), (4, 4), (5, 3)


@pytest.fixture(scope="module")
def jax() -> Any:
    return framework("jax")


@needs("flax", "jax")
@pytest.mark.parametrize("window", [1, 3, 7])
def test_every_pixel_is_that_of_the_usual_convolution(jax: Any, window: int) -> None:
    from disteval.models.resnet18_jax import convolve_on_cpu

    draw = np.random.default_rng(window)
    options = {
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        "precision": jax.lax.Precision.HIGHEST,
    }
    kernel = draw.integers(-8, 9, (window, window, 3, 5)).astype(np.float32)
    for size, stride in product(SIZES, (1, 2)):
        # Sums of small integers are exact in any order, so the results must be equal.
        x = draw.integers(-8, 9, (4, *size, 3)).astype(np.float32)
        where = (stride, stride), ((window // 2, window // 2),) * 2
        found = convolve_on_cpu(jax.numpy.asarray(x), jax.numpy.asarray(kernel), *where, **options)
        expected = jax.lax.conv_general_dilated(x, kernel, *where, **options)
        np.testing.assert_array_equal(found, expected)


@needs("flax", "jax")
def test_a_pictures_scores_do_not_depend_on_its_place_in_the_batch(jax: Any) -> None:
    from disteval.models.resnet18_jax import make_predict

    predict = make_predict(default_weights())
    images = load_embedded().images[:32]
    order = np.random.default_rng(0).permutation(32)
    whole, moved = (np.asarray(predict(each)) for each in (images, images[order]))
    np.testing.assert_array_equal(whole[order].view(np.uint32), moved.view(np.uint32))
    assert predict(images[:0]).shape == (0, 10)


@needs("mlx")
@pytest.mark.parametrize("window", [1, 3, 7])
def test_every_pixel_is_that_of_mlxs_convolution(window: int) -> None:
    core = framework("mlx.core")
    from disteval.models.resnet18_mlx import convolve, convolve_on_cpu

    draw = np.random.default_rng(window)
    kernel = core.array(draw.integers(-8, 9, (window, window, 3, 5)).astype(np.float32))
    for size, stride in product((*SIZES, (7, 8)), (1, 2)):
        x = core.array(draw.integers(-8, 9, (4, *size, 3)).astype(np.float32))
        expected = np.asarray(convolve(x, kernel, stride))
        np.testing.assert_array_equal(convolve_on_cpu(x, kernel, stride), expected)
