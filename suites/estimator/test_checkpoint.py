"""A checkpoint is whole or not there, is refused when damaged, and runs nothing when it is read."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
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
    check_plain,
    read_checkpoint,
    write_checkpoint,
    write_safetensors,
)
from disteval.estimator.folder import latest_checkpoint  # noqa: E402
from disteval.estimator.hooks import CheckpointHook  # noqa: E402
from disteval.files import write_atomically  # noqa: E402
from safetensors import safe_open  # noqa: E402

from suites.estimator.tiny import Tiny  # noqa: E402

pytestmark = needs("torch")

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from disteval.files import write_atomically

def write(file):
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), write)
"""


def state(value: float = 1.0) -> dict[str, Any]:
    return {"state_dict": {"weight": torch.full((5000,), value)}, "epoch": 1}


def values(path: Path) -> set[float]:
    return set(read_checkpoint(path)["state_dict"]["weight"].tolist())


@pytest.mark.parametrize("name", ["epoch_1.pt", "epoch_2.pt"])
def test_a_writer_that_is_killed_loses_nothing(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "epoch_1.pt", state(1.0))
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / name)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    found = latest_checkpoint(tmp_path)
    assert found == tmp_path / "epoch_1.pt"
    assert values(found) == values(tmp_path / "latest.pt") == {1.0}
    write_checkpoint(tmp_path / name, state(2.0))
    assert values(tmp_path / "latest.pt") == {2.0}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "epoch_1.pt"
    write_checkpoint(path, state(1.0))

    def fail(file: Any) -> None:
        file.write(b"half of it")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert values(path) == {1.0}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch_1.pt", "latest.pt"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "not ours"])
def test_a_damaged_checkpoint_is_refused_with_a_remedy(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "epoch_1.pt"
    write_checkpoint(path, state())
    content = bytearray(path.read_bytes())
    at = content.index(b"\x00\x00\x80\x3f" * 100)  # among the weights, which are 1.0
    content[at + 40] ^= 4
    changed = {"truncated": content[:-100], "flipped": content, "emptied": b"", "not ours": b"x"}
    path.write_bytes(changed[damage])
    with pytest.raises(WeightsError, match=r"damaged"):
        read_checkpoint(path)
    with pytest.raises(WeightsError, match=r"epoch_1\.pt"):
        EpochBasedRunner(Tiny()).resume(path)


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


def test_the_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    weights = {"b": torch.ones(3), "a": torch.zeros(2, 2, dtype=torch.float16)}
    facts = {name: name for name in ("epoch", "iter", "correct", "evaluated", "accuracy")}
    first = b""
    for order in (1, -1) * 5:
        named = dict(list(facts.items())[::order])
        write_safetensors(tmp_path / "w", dict(list(weights.items())[::order]), named)
        found = (tmp_path / "w").read_bytes()
        assert found == (first := first or found)
    with safe_open(tmp_path / "w", "pt") as file:
        assert file.metadata().items() > facts.items()
        assert all(torch.equal(file.get_tensor(name), weights[name]) for name in weights)


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


def test_names_with_and_without_module_fit() -> None:
    model, other = Tiny(), Tiny()
    parallel = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    assert module.load_weights(other, parallel, "the file", strict=True) == []
    assert torch.equal(other.fc.weight, model.fc.weight)
    with pytest.raises(WeightsError, match=r"fc\.bias"):
        module.load_weights(other, {"fc.weight": model.fc.weight}, "the file", strict=True)
    assert module.load_weights(other, {"fc.weight": model.fc.weight}, "it") == ["fc.bias"]


def test_what_a_checkpoint_may_hold_is_what_torch_reads_back(tmp_path: Path) -> None:
    plain = {"a": [1, 2.0, None, True, "x", b"y", (torch.ones(1),)], 3: {"z": torch.float32}}
    check_plain(plain, "it")
    torch.save(plain, tmp_path / "plain.pt")
    torch.load(tmp_path / "plain.pt", weights_only=True)
    for wrong in ({1, 2}, object(), Path("x"), torch.nn.Linear(1, 1)):
        with pytest.raises(UsageError, match=r"\['deep'\]\[1\]"):
            check_plain({"deep": [0, wrong]}, "it")


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
