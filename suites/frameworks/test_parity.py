"""One model gives the same result in every framework, over every backend, at every world size.

`suites/docs/test_commands.py` evaluates it in the frameworks whose commands pages show.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval.data import load_embedded
from disteval.models import default_weights
from safetensors.numpy import load_file

from suites.helpers.models import FRAMEWORKS, preprocess
from suites.helpers.needs import each, framework, needs
from suites.helpers.pictures import RIGHT, SIZES
from suites.helpers.processes import run_plainly

REFERENCE = Path(__file__).with_name("reference_scores.safetensors")
TOLERANCE = 1e-4
"""The tolerance, relative to the largest score of a sample."""

# What the weights that ship get right: of the whole embedded set, and of its first pictures.
CORRECT = {10_000: {"top1": 7960, "top3": 9336}, SIZES["test"]: RIGHT}

RUNS = [("mlx", "mlx", 3, SIZES["test"]), ("torch", "torch_cpu", 3, 10_000)]
"""Each framework, backend, world size and number of pictures."""


@pytest.fixture(params=each(*FRAMEWORKS))
def model(request: pytest.FixtureRequest) -> Any:
    """Return the module of one framework's ResNet-18."""
    return framework(FRAMEWORKS[request.param])


def test_pixels_become_the_same_bits(model: Any) -> None:
    every = np.broadcast_to(np.arange(256, dtype=np.uint8), (1, 3, 4, 256)).copy()
    for images in (every, load_embedded("test").images[:500]):
        found = np.asarray(_jitted(model)(images))
        np.testing.assert_array_equal(found.view(np.uint32), preprocess(images).view(np.uint32))
    # Each channel gets about mean 0 and spread 1 on real pictures: 0.4914 / 0.2470 at black.
    assert preprocess(every)[0, :, 0, 0] == pytest.approx([-1.9895, -1.9803, -1.7068], abs=1e-3)


def _jitted(model: Any) -> Callable[[Any], Any]:
    """Return the preprocessing of the model, compiled if the predict function compiles it."""
    name = model.__name__.rpartition("_")[2]
    if name == "jax":
        return framework("jax").jit(model.preprocess)  # type: ignore[no-any-return]
    if name == "tensorflow":
        return framework("tensorflow").function(model.preprocess)  # type: ignore[no-any-return]
    if name == "mlx":
        return lambda images: model.preprocess(framework("mlx.core").array(images))
    torch = framework("torch")
    return lambda images: model.preprocess(torch.from_numpy(images))


def test_scores_agree_with_the_reference(
    model: Any, record_property: Callable[[str, object], None]
) -> None:
    expected = load_file(REFERENCE)["scores"]
    images = load_embedded("test").images[: len(expected)]
    found = np.asarray(model.make_predict(default_weights())(images))
    size = np.abs(expected).max(axis=1, keepdims=True)
    assert found.dtype == np.float32
    assert (np.abs(found - expected) / size).max() < TOLERANCE
    # Samples that rounding could decide either way; they are few, and must not be hidden.
    ordered = np.sort(expected, axis=1)
    close = int(((ordered[:, -1] - ordered[:, -2]) / size[:, 0] < TOLERANCE).sum())
    record_property("samples within the tolerance of a tie", close)
    decided = (ordered[:, -1] - ordered[:, -2]) / size[:, 0] >= TOLERANCE
    np.testing.assert_array_equal(found.argmax(1)[decided], expected.argmax(1)[decided])


@pytest.mark.parametrize(
    ("name", "backend", "world_size", "size"),
    [pytest.param(*run, marks=needs(run[0], run[1])) for run in RUNS],
)
def test_the_same_predictions_are_right(
    name: str, backend: str, world_size: int, size: int, small_cifar10: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = [
        sys.executable, "-m", "disteval.cli", "eval", "--timeout=120",
        # A batch is filled up to its size, so that a rank's third is one batch.
        *(["--batch-size=41"] if size < 10_000 else []),
        f"--data={'embedded' if size == 10_000 else small_cifar10}",
        f"--framework={name}", f"--backend={backend}", f"--world-size={world_size}",
        f"--json={report}",
    ]  # fmt: skip
    done = run_plainly(words, tmp_path, 400)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    accuracy = found["metrics"]["accuracy"]
    assert {name: accuracy[f"correct_{name}"] for name in ("top1", "top3")} == CORRECT[size]
    assert found["size"] == size
    assert (found["framework"], found["backend"]) == (name, backend)
