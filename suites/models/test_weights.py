"""The default weights and a user's files, valid and invalid ones, are read correctly."""

import hashlib
import traceback
import zipfile
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import WeightsError
from disteval.models import default_weights, load_weights, random_trunk, save_weights

from suites.helpers.models import buffer_shapes, parameter_shapes
from suites.helpers.needs import framework, needs
from suites.helpers.pickles import Calls

# Taken once: whatever changes it changes every default model's every answer.
TRUNK_DIGEST = "47c5818caa6d545f07894ac490d4480e1a3770544452465b7e14ec08b16384e3"


def test_the_default_weights_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for name, array in random_trunk().items():
        digest.update(name.encode() + array.astype("<f4").tobytes())
    assert digest.hexdigest() == TRUNK_DIGEST


def test_the_default_weights_are_whole() -> None:
    weights = default_weights()
    assert {name: array.shape for name, array in weights.items()} == (
        parameter_shapes() | buffer_shapes()
    )
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_what_ships_is_small() -> None:
    head = resources.files("disteval.models").joinpath("default_head.safetensors")
    assert len(head.read_bytes()) <= 64 * 1024


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return default_weights()


def test_safetensors_round_trip(tmp_path: Path, weights: dict[str, Any]) -> None:
    save_weights(tmp_path / "w.safetensors", weights)
    loaded = load_weights(tmp_path / "w.safetensors")
    assert loaded.keys() == weights.keys()
    assert all(np.array_equal(loaded[name], weights[name]) for name in weights)


@needs("torch")
@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        (".pt", "wrapped, of ddp"),
        (".pt", "parameters, channels_last"),
        *product((".pt", ".safetensors"), ("float64", "bfloat16")),
    ],
)
def test_files_of_torch(tmp_path: Path, weights: dict[str, Any], suffix: str, form: str) -> None:
    torch = framework("torch")
    from safetensors.torch import save_file

    dtype, path = getattr(torch, form, torch.float32), tmp_path / f"w{suffix}"
    state: Any = {name: torch.from_numpy(array).to(dtype) for name, array in weights.items()}
    expected = {name: tensor.float().numpy() for name, tensor in state.items()}
    state["bn1.num_batches_tracked"] = torch.tensor(7)
    if form == "wrapped, of ddp":
        state = {"state_dict": {f"module.{name}": t for name, t in state.items()}, "epoch": 3}
    elif form == "parameters, channels_last":
        state["conv1.weight"] = state["conv1.weight"].to(memory_format=torch.channels_last)
        state |= {name: torch.nn.Parameter(state[name]) for name in parameter_shapes()}
    (torch.save if suffix == ".pt" else save_file)(state, path)
    loaded = load_weights(path)
    assert loaded.keys() == weights.keys()
    for name, array in loaded.items():
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        # Rounded once, by the cast that wrote the file; reading changes nothing.
        np.testing.assert_array_equal(array, expected[name])


@needs("torch")
@pytest.mark.parametrize(("older", "reason"), [(False, "UnpicklingError"), (True, "1.6")])
def test_a_torch_file_runs_nothing_and_nobody_is_told_to_trust_it(
    tmp_path: Path, older: bool, reason: str
) -> None:
    torch, path, trap = framework("torch"), tmp_path / "w.pt", tmp_path / "trap"
    options = {"pickle_protocol": 2, "_use_new_zipfile_serialization": not older}
    torch.save({"fc.weight": Calls(Path.touch, trap)}, path, **options)
    with pytest.raises(WeightsError, match=rf"\bw\.pt\b.*{reason}") as told:
        load_weights(path)
    assert not trap.exists()
    shown = "".join(traceback.format_exception(told.value))
    assert "weights_only` set" not in shown and "trusted source" not in shown


@needs("torch")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("content", [b"", b"noise" * 100, b"PK\x03\x04 no zip"])
def test_damaged_files(tmp_path: Path, suffix: str, content: bytes) -> None:
    if suffix == ".pt":
        framework("torch")
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"weights file .*w{suffix} can't be read"):
        load_weights(path)


@needs("torch")
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # of a damaged file
def test_a_torch_file_with_any_byte_wrong_is_read_or_refused(tmp_path: Path) -> None:
    """Only WeightsError may come of damage, whatever the unpickler makes of it."""
    torch = framework("torch")
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(2)}, path)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x1F]) + good[place + 1 :])
        with pytest.raises(WeightsError):
            load_weights(path)


@needs("torch")
def test_a_torch_file_with_a_flipped_bit_is_damaged(tmp_path: Path) -> None:
    torch = framework("torch")
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(1000)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(b"\x00\x00\x80\x3f" * 100) + 40] ^= 4
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"\bw\.pt\b.*CRC"):
        load_weights(path)


@needs("torch")
def test_a_torch_file_of_many_small_objects_is_not_read(tmp_path: Path) -> None:
    path, lists = tmp_path / "w.pt", b"\x80\x02" + b"]" * 1_100_000
    framework("torch").save({}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(path, "w") as file:
        for name in plain.namelist():
            file.writestr(name, lists if name.endswith("/data.pkl") else plain.read(name))
    with pytest.raises(WeightsError, match=r"data.pkl in .* holds 1100002 bytes, more than"):
        load_weights(path)
    # torch reads what stands before the archive.
    path.write_bytes(lists + path.read_bytes())
    with pytest.raises(WeightsError, match="no zip archive"):
        load_weights(path)


def test_a_checksum_in_the_metadata_of_another_program_is_not_ours(
    tmp_path: Path, weights: dict[str, Any]
) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "w.safetensors"
    save_file(weights, path, {"sha256": "0" * 64})
    assert load_weights(path).keys() == weights.keys()


@needs("torch")
def test_a_safetensors_file_with_a_large_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    entry = b',"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b"".join(entry % i for i in range(20_000))[1:] + b"}"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(WeightsError, match=f"its header has {len(header)} bytes, more than"):
        load_weights(path)
    from disteval.estimator import read_checkpoint

    with pytest.raises(WeightsError, match=f"its header has {len(header)} bytes, more than"):
        read_checkpoint(path)


@needs("torch")
def test_a_torch_file_that_inflates_beyond_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = framework("torch")
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for entry in plain.namelist():
            deflated.writestr(entry, plain.read(entry))
    monkeypatch.setattr("disteval.models.weights.MAX_FILE_BYTES", 1 << 20)
    assert (tmp_path / "w.pt").stat().st_size < 1 << 20
    with pytest.raises(WeightsError, match="1048576"):
        load_weights(tmp_path / "w.pt")


@needs("torch")
def test_torch_tensors_that_are_no_arrays(tmp_path: Path, weights: dict[str, Any]) -> None:
    torch = framework("torch")
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    wrong = {
        r"fc.bias holds torch.float32 \(torch.sparse_coo": state["fc.bias"].to_sparse(),
        r"fc.bias holds torch.float32 \(torch.strided, meta": torch.empty(10, device="meta"),
        "fc.bias holds torch.complex64": torch.zeros(10, dtype=torch.complex64),
        # Two bytes in the file; as float32 they would fill 4 TB.
        "fc.bias has shape": torch.zeros(1, dtype=torch.float16).expand(10**6, 10**6),
    }
    for message, tensor in wrong.items():
        torch.save(state | {"fc.bias": tensor}, tmp_path / "w.pt")
        with pytest.raises(WeightsError, match=message):
            load_weights(tmp_path / "w.pt")


def _without(weights: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: array for other, array in weights.items() if other != name}


def test_files_that_do_not_fit(tmp_path: Path, weights: dict[str, Any]) -> None:
    head = {"fc.weight": np.zeros((1000, 512), np.float32), "fc.bias": np.zeros(1000, np.float32)}
    wrong = {
        "lacks conv1.weight;": _without(weights, "conv1.weight"),
        "lacks conv1.weight, bn1.weight, bn1.bias and 99 more": {"other": weights["fc.bias"]},
        "has unexpected other": weights | {"other": weights["fc.bias"]},
        r"fc.weight has shape \(1000, 512\), not \(10, 512\): it is for 1000 classes": weights
        | head,
        "fc.bias holds NaN or infinity": weights | {"fc.bias": np.full(10, np.nan, np.float32)},
        "fc.bias holds NaN or infinity as": weights | {"fc.bias": np.full(10, 1e300)},
        "has unexpected module.fc.bias": weights | {"module.fc.bias": weights["fc.bias"]},
        "fc.bias holds I64, not a dense": weights | {"fc.bias": np.zeros(10, np.int64)},
    }
    for message, content in wrong.items():
        save_weights(tmp_path / "w.safetensors", content)
        with pytest.raises(WeightsError, match=message):
            load_weights(tmp_path / "w.safetensors")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"\bw\.pt\b"):
        load_weights(tmp_path / "w.pt")
    (tmp_path / "w.onnx").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"'.onnx'.*.pth"):
        load_weights(tmp_path / "w.onnx")
    with (tmp_path / "huge.pt").open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(WeightsError, match="2147483648"):
        load_weights(tmp_path / "huge.pt")
