"""Ranks that have different models get no result, and a model in training mode is noticed."""

import logging
from typing import Any

import numpy as np
import pytest
from disteval import Leases, UsageError, evaluate
from disteval.metrics import Mean

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import assert_each_raised, run_ranks, values

pytestmark = needs("torch")
SAMPLES = np.arange(24, dtype=np.float32).reshape(12, 2)


def model_of(seed: int, *layers: Any) -> Any:
    """Return a model of one linear layer, whose weights are drawn, and other layers."""
    torch = framework("torch")
    generator = torch.Generator().manual_seed(seed)
    linear = torch.nn.Linear(2, 1)
    torch.nn.init.normal_(linear.weight, generator=generator)
    torch.nn.init.zeros_(linear.bias)
    return torch.nn.Sequential(linear, *layers).eval()


def mean_of(model: Any, backend: Any = "non_dist", **options: Any) -> Any:
    torch = framework("torch")

    def predict(batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(np.asarray(batch)))[:, 0].numpy()

    def update(outputs: Any, batch: Any) -> Any:
        return (outputs,)

    return evaluate(predict, SAMPLES, {"mean": Mean()}, backend, 4, update=update, **options)


@pytest.mark.parametrize("leases", [None, Leases()])
def test_ranks_with_different_weights_are_refused(leases: Any) -> None:
    def rank(backend: Any) -> Any:
        return mean_of(model_of(int(backend.rank == 1)), backend, leases=leases)

    assert_each_raised(run_ranks(3, rank), UsageError, "weights", "rank 1")


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("layer", ["Dropout", "BatchNorm1d"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_model_in_training_mode_in_a_function_is_told(
    size: int, layer: str, is_training: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(0, getattr(framework("torch").nn, layer)(1)).train(is_training)
    with caplog.at_level(logging.WARNING, logger="disteval"):
        values(run_ranks(size, lambda backend: mean_of(model, backend)))
    assert (layer in caplog.text) == is_training
