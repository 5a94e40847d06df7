"""A network runs on the device that was asked for, or not at all."""

import pytest
from disteval import UsageError
from disteval.models import random_trunk

from suites.helpers.models import FRAMEWORKS
from suites.helpers.needs import each, framework


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "cpu:99", "cpu:first"])
@pytest.mark.parametrize("name", each("jax", "tensorflow", "mlx"))
def test_a_device_that_is_not_there_is_named(name: str, device: str) -> None:
    make_predict = framework(FRAMEWORKS[name]).make_predict
    with pytest.raises(UsageError, match=f"has no device '{device}' here"):
        make_predict(random_trunk(), device)
