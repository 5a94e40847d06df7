"""The device of an array decides whether a metric fetches its result at once or later."""

from __future__ import annotations

import numpy as np
from disteval.metrics.arrays import is_on_host

from suites.helpers.needs import framework, needs

pytestmark = needs("torch", "jax")


def test_lists_and_numpy_arrays_are_on_the_host() -> None:
    assert is_on_host([1.0])
    assert is_on_host(np.zeros(2))


def test_a_tensor_is_where_its_device_says() -> None:
    torch = framework("torch")
    assert is_on_host(torch.zeros(2))
    assert not is_on_host(torch.zeros(2, device="meta"))


def test_jax_arrays_may_be_under_way() -> None:
    jax = framework("jax")
    assert not is_on_host(jax.numpy.zeros(2))
