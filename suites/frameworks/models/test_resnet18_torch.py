"""The torch network is torchvision's ResNet-18, and its scores depend on the picture alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import WeightsError
from disteval.data import load_embedded
from disteval.models import default_weights
from disteval.models.preprocess import preprocess
from disteval.models.resnet18 import buffer_shapes, parameter_shapes

from suites.requirements import framework


@pytest.fixture(scope="module")
def torch() -> Any:
    return framework("torch")


@pytest.fixture(scope="module")
def predict(torch: Any) -> Any:
    from disteval.models.resnet18_torch import make_predict

    return make_predict(default_weights())


def test_names_shapes_and_number_of_parameters(torch: Any) -> None:
    from disteval.models.resnet18_torch import ResNet18

    model = ResNet18()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == parameter_shapes()
    buffers = {name: tuple(b.shape) for name, b in model.named_buffers() if b.dim()}
    assert buffers == buffer_shapes()
    assert sum(p.numel() for p in model.parameters()) == 11_181_642


def test_torchvisions_network_gives_the_same_scores(torch: Any) -> None:
    models = framework("torchvision.models")
    from disteval.models.resnet18_torch import build

    torch.manual_seed(0)
    theirs = models.resnet18(num_classes=10).eval()
    ours = build({n: t.numpy() for n, t in theirs.state_dict().items() if t.dim()})
    batch = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(ours(batch), theirs(batch))


def test_preprocessing_is_the_reference_bit_for_bit(torch: Any) -> None:
    from disteval.models import resnet18_torch

    values = np.broadcast_to(np.arange(256, dtype=np.uint8), (1, 3, 4, 256))
    theirs = resnet18_torch.preprocess(torch.from_numpy(values.copy())).numpy()
    assert theirs.tobytes() == preprocess(values).tobytes()
    # Each channel gets about mean 0 and spread 1 on real pictures: 0.4914 / 0.2470 at black.
    assert preprocess(values)[0, :, 0, 0] == pytest.approx([-1.9895, -1.9803, -1.7068], abs=1e-3)


def test_the_default_model_is_well_above_chance_and_below_perfect(torch: Any, predict: Any) -> None:
    dataset = load_embedded()
    scores = predict(dataset.images[:2000])
    assert scores.shape == (2000, 10)
    right = (scores.argmax(dim=1).numpy() == dataset.labels[:2000]).mean()
    assert 0.6 < right < 0.95


def test_a_pictures_scores_do_not_depend_on_its_place_in_the_batch(
    torch: Any, predict: Any
) -> None:
    images = load_embedded().images[:256]
    order = np.random.default_rng(0).permutation(256)
    assert torch.equal(predict(images)[order], predict(np.ascontiguousarray(images[order])))


def test_weights_that_do_not_fit_are_refused(torch: Any) -> None:
    from disteval.models.resnet18_torch import build

    weights = default_weights()
    del weights["layer1.0.bn1.weight"]
    with pytest.raises(WeightsError, match=r"do not fit ResNet-18: layer1.0.bn1.weight"):
        build(weights)
