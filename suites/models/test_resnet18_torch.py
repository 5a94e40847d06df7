"""The torch network is torchvision's ResNet-18, and its scores depend on the picture alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from disteval import WeightsError, predict_all
from disteval.data import load_embedded
from disteval.models import default_weights

from suites.helpers.models import buffer_shapes, parameter_shapes
from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

pytestmark = needs("torch")


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


@needs("torchvision")
def test_torchvisions_network_gives_the_same_scores(torch: Any) -> None:
    models = framework("torchvision.models")
    from disteval.models.resnet18_torch import build

    torch.manual_seed(0)
    theirs = models.resnet18(num_classes=10).eval()
    ours = build({n: t.numpy() for n, t in theirs.state_dict().items() if t.dim()})
    batch = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(ours(batch), theirs(batch))


def test_a_pictures_scores_do_not_depend_on_its_place_in_the_batch(
    torch: Any, predict: Any
) -> None:
    images = load_embedded().images[:140]
    order = np.random.default_rng(0).permutation(140)
    assert torch.equal(predict(images)[order], predict(np.ascontiguousarray(images[order])))


@pytest.fixture
def threads(request: pytest.FixtureRequest, torch: Any) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dtype", "threads"), [("float32", 1), ("float32", 2), ("bfloat16", 2)], indirect=["threads"]
)
def test_a_pictures_scores_do_not_depend_on_its_place_in_a_batch_of_any_size(
    torch: Any, dtype: str, threads: int
) -> None:
    from disteval.models.resnet18_torch import make_predict

    predict = make_predict(default_weights(), dtype=dtype)
    picture = load_embedded().images[5:6]
    for rows in (1, 2, 3, 6, 7, 11, 18, 27, 131):
        scores = predict(np.repeat(picture, rows, axis=0))
        assert torch.equal(scores, scores[:1].expand(rows, -1)), f"in a batch of {rows}"


@pytest.mark.usefixtures("without_canary")
@pytest.mark.parametrize(("batch_size", "size"), [(131, 170), (7, 30)])
def test_scores_have_the_same_bits_at_another_world_size(
    torch: Any, predict: Any, batch_size: int, size: int
) -> None:
    """The last batch, which is short, is filled up to whole slices only."""
    images = load_embedded().images[:size]
    rows = []

    def predicted(batch: Any) -> Any:
        rows.append(len(batch))
        return predict(batch)

    predicted.slice_rows = predict.slice_rows  # type: ignore[attr-defined]
    alone = predict_all(predicted, images, "non_dist", batch_size)
    assert sum(rows) - size < predict.slice_rows(batch_size)
    ranks = run_ranks(3, lambda backend: predict_all(predict, images, backend, batch_size))
    assert np.array_equal(values(ranks)[0], alone)


def test_a_batch_is_cut_into_as_few_equal_slices_as_hold_it(torch: Any, predict: Any) -> None:
    """A batch of some slices is cut as the full batch, so each slice has the same shape."""
    for rows in range(1, 2000):
        step = predict.slice_rows(rows)
        slices = -(-rows // step)
        assert step <= 128 >= rows / slices
        assert step * slices - rows < slices, "a slice could be smaller"
        assert all(predict.slice_rows(many * step) == step for many in range(1, slices + 1))


def test_pictures_of_another_size_get_their_scores(torch: Any, predict: Any) -> None:
    from disteval.models.resnet18_torch import make_predict

    images = np.random.default_rng(0).integers(0, 256, (5, 3, 48, 40), np.uint8)
    exact = make_predict(default_weights(), exact=True)(images)
    torch.testing.assert_close(predict(images), exact, rtol=1e-3, atol=1e-3)
    assert predict(images[:0]).shape == (0, 10)


def test_weights_that_do_not_fit_are_refused(torch: Any) -> None:
    from disteval.models.resnet18_torch import build

    weights = default_weights()
    del weights["layer1.0.bn1.weight"]
    with pytest.raises(WeightsError, match=r"0\.bn1\.weight"):
        build(weights)


@pytest.mark.parametrize("rows", [1, 64, 256, 1000])
def test_a_gpu_computes_in_float32(torch: Any, predict: Any, rows: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")
    from disteval.models.resnet18_torch import make_predict

    images = load_embedded().images[:rows]
    found = make_predict(default_weights(), "cuda")(images).cpu()
    # TF32, which torch uses unless it is told not to, is 0.05 away from a CPU's scores.
    torch.testing.assert_close(found, torch.as_tensor(predict(images)), atol=1e-3, rtol=0)
