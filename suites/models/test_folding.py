"""Folding batch normalisations changes rounding, and nothing else."""

from typing import Any

import numpy as np
import pytest
from disteval.data import load_embedded
from disteval.models import default_weights

from suites.helpers.models import FRAMEWORKS, fold_norms, is_folded, to_numpy
from suites.helpers.needs import each, framework


@pytest.fixture(params=each(*FRAMEWORKS))
def model(request: pytest.FixtureRequest) -> Any:
    return framework(FRAMEWORKS[request.param])


def _trained(seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights with batch normalisations that change values, as in a trained network."""
    random = np.random.default_rng(seed)
    weights = default_weights()
    for name, array in weights.items():
        if array.ndim == 1 and not name.startswith("fc."):
            drawn = random.uniform(0.5, 2.0, array.shape)
            shifted = drawn - 1 if name.endswith(("bias", "running_mean")) else drawn
            weights[name] = shifted.astype(np.float32)
    return weights


def test_a_folded_network_gives_the_same_scores_and_bfloat16_coarser_ones(model: Any) -> None:
    images = load_embedded("test").images[:64]
    weights = _trained()
    exact = np.asarray(model.make_predict(weights, exact=True)(images))
    folded = np.asarray(model.make_predict(weights)(images))
    np.testing.assert_allclose(folded, exact, rtol=0, atol=1e-3 * np.abs(exact).max())
    assert (folded != exact).any(), "nothing was folded"
    scores = model.make_predict(weights, dtype="bfloat16")(images)
    assert "bfloat16" in str(scores.dtype)
    error = np.abs(to_numpy(scores) - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.2


@pytest.mark.parametrize(("part", "value"), [("weight", 3e38), ("running_var", -1.0)])
def test_what_float32_does_not_hold_is_left_alone(part: str, value: float) -> None:
    weights = _trained()
    weights[f"layer2.0.downsample.1.{part}"][3] = value
    weights["layer2.0.downsample.0.weight"][3] = 10.0
    kept = fold_norms(weights)
    assert not is_folded(kept)
    assert kept.keys() == weights.keys()
