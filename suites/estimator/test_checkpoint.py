"""A checkpoint is whole or not there, is refused when damaged, and runs nothing when it is read."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WeightsError
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs

torch = framework("torch")

from disteval.estimator import EpochBasedRunner  # noqa: E402
from disteval.estimator import checkpoint as module  # noqa: E402
from disteval.estimator.checkpoint import (  # noqa: E402
    read_checkpoint,
    write_safetensors,
)
from disteval.estimator.folder import latest_checkpoint  # noqa: E402
from disteval.estimator.hooks import CheckpointHook  # noqa: E402

from suites.estimator.tiny import Tiny  # noqa: E402

pytestmark = needs("torch")


def state(value: float = 1.0) -> dict[str, Any]:
    return {"state_dict": {"weight": torch.full((5000,), value)}, "epoch": 1}


def values(path: Path) -> set[float]:
    return set(read_checkpoint(path)["state_dict"]["weight"].tolist())


def test_a_checkpoint_that_would_run_something_does_not(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"state_dict": {"weight": Evil()}}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(WeightsError, match="tensors"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_is_missing_too_large_or_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        read_checkpoint(tmp_path / "epoch_1.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(WeightsError, match="holds no weights"):
        read_checkpoint(tmp_path / "list.pt")
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 100)
    with pytest.raises(WeightsError, match="100"):
        read_checkpoint(tmp_path / "list.pt")


@settings(deadline=None, max_examples=150)
@given(at=st.integers(0, 2**20), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_the_best_weights(at: int, bit: int) -> None:
    weights = {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "best.safetensors")
        write_safetensors(path, weights, {"epoch": "3"})
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 1 << bit
        path.write_bytes(content)
        try:
            found = read_checkpoint(path)["state_dict"]
        except WeightsError:
            return
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_names_with_and_without_module_fit(tmp_path: Path) -> None:
    model, other, weights = Tiny(), EpochBasedRunner(Tiny()), tmp_path / "weights.pt"
    torch.save({f"module.{name}": each for name, each in model.state_dict().items()}, weights)
    other.load_checkpoint(weights, strict=True)
    assert torch.equal(other.model.fc.weight, model.fc.weight)
    torch.save({"fc.weight": model.fc.weight}, weights)
    with pytest.raises(WeightsError, match=r"fc\.bias"):
        other.load_checkpoint(weights, strict=True)
    other.load_checkpoint(weights)


@pytest.mark.parametrize("path", [3, b"run", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    runner = EpochBasedRunner(Tiny())
    for use in (
        read_checkpoint, latest_checkpoint, runner.resume, runner.save_checkpoint,
        lambda path: EpochBasedRunner(Tiny(), work_dir=path),
        lambda path: CheckpointHook(out_dir=path),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="path"):
            use(path)
