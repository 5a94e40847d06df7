"""CIFAR-10 is read in both layouts, and damaged and hostile files are refused."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import DataError, UsageError
from disteval.data import Predictions, download_cifar10, load_cifar10, load_predictions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suites.helpers.data import BINARY_FOLDER, PYTHON_FOLDER

RECORD = 3073


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    images = source.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return images, source.integers(0, 10, count)


def write_binary(root: Path, name: str, images: np.ndarray, labels: np.ndarray) -> Path:
    folder = root / BINARY_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(-1, 3072)], axis=1)
    path = folder / f"{name}.bin"
    path.write_bytes(records.tobytes())
    return path


def write_python(root: Path, name: str, content: Any, protocol: int = 2) -> Path:
    folder = root / PYTHON_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def batch(images: np.ndarray, labels: np.ndarray) -> dict[bytes, Any]:
    return {b"data": images.reshape(-1, 3072), b"labels": labels.tolist(), b"filenames": [b"x.png"]}


@given(st.integers(1, 5), st.integers(0, 1000), st.sampled_from([2, 3, 4]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_layouts_give_the_same_arrays(
    tmp_path: Path, count: int, seed: int, protocol: int
) -> None:
    images, labels = pictures(count, seed)
    write_binary(tmp_path / "a", "test_batch", images, labels)
    write_python(tmp_path / "b", "test_batch", batch(images, labels), protocol)
    for dataset in (load_cifar10(tmp_path / "a"), load_cifar10(tmp_path / "b")):
        assert np.array_equal(dataset.images, images)
        assert np.array_equal(dataset.labels, labels)
        assert dataset.images.dtype == np.uint8
        assert dataset.labels.dtype == np.int64
        assert dataset.images.flags.c_contiguous
        assert len(set(dataset.classes)) == 10
        assert dataset.name == "cifar10/test"


def python_2_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """Write a pickle as cPickle of Python 2 did: str is bytes, by the opcodes U and T."""
    pixels = images.tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x14testing batch 1 of 1q\x03",
            b"U\x06labelsq\x04]q\x05(" + b"".join(bytes([0x4B, n]) for n in labels) + b"e",
            b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07",
            b"cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09",
            b"(K\x01K" + bytes([len(images)]) + b"M\x00\x0c\x86q\x0acnumpy\ndtype\nq\x0b",
            b"U\x02u1K\x00K\x01\x87Rq\x0c(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tb",
            b"U\x09filenamesq\x0d]q\x0e(U\x05a.pngU\x05b.pngeu.",
        ]
    )


def test_a_python_file_of_python_2_and_numpy_1(tmp_path: Path) -> None:
    images, _ = pictures(2)
    path = write_python(tmp_path, "test_batch", {})
    path.write_bytes(python_2_pickle(images, [3, 8]))
    # The file is what it claims to be: NumPy itself reads it so.
    known = pickle.loads(path.read_bytes(), encoding="bytes")
    assert np.array_equal(known[b"data"], images.reshape(2, 3072))
    dataset = load_cifar10(tmp_path)
    assert np.array_equal(dataset.images, images)
    assert dataset.labels.tolist() == [3, 8]


def test_a_python_file_that_python_3_and_numpy_1_wrote_again(tmp_path: Path) -> None:
    images, _ = pictures(2)
    path = write_python(tmp_path, "test_batch", {"data": images.reshape(2, -1), "labels": [1, 2]})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert np.array_equal(load_cifar10(tmp_path).images, images)


def test_the_binary_layout_is_taken_where_both_are_there(tmp_path: Path) -> None:
    images, labels = pictures(2)
    write_binary(tmp_path, "test_batch", images, labels)
    write_python(tmp_path, "test_batch", batch(*pictures(1, seed=1)))
    assert np.array_equal(load_cifar10(tmp_path).images, images)


def test_the_folder_itself_may_be_given(tmp_path: Path) -> None:
    images, labels = pictures(3)
    write_binary(tmp_path, "test_batch", images, labels)
    assert len(load_cifar10(tmp_path / BINARY_FOLDER)) == 3
    write_python(tmp_path, "test_batch", batch(images, labels))
    assert len(load_cifar10(tmp_path / PYTHON_FOLDER)) == 3


def test_the_training_split_is_all_files_in_order_and_says_when_some_are_missing(
    tmp_path: Path,
) -> None:
    parts = [pictures(2, seed) for seed in range(5)]
    for number, (images, labels) in enumerate(parts[:4], start=1):
        write_binary(tmp_path, f"data_batch_{number}", images, labels)
    assert "4 of 5" in load_cifar10(tmp_path, "train").name
    write_binary(tmp_path, "data_batch_5", *parts[4])
    dataset = load_cifar10(tmp_path, "train")
    assert dataset.name == "cifar10/train"
    assert np.array_equal(dataset.images, np.concatenate([images for images, _ in parts]))


def test_a_truncated_file_names_the_offset(tmp_path: Path) -> None:
    path = write_binary(tmp_path, "test_batch", *pictures(3))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"bin.*6146"):
        load_cifar10(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"test_batch.bin"):
        load_cifar10(tmp_path)


def test_a_label_over_9_names_the_offset(tmp_path: Path) -> None:
    images, labels = pictures(3)
    labels[2] = 10
    write_binary(tmp_path, "test_batch", images, labels)
    with pytest.raises(DataError, match=r"6146.*10"):
        load_cifar10(tmp_path)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = write_binary(tmp_path, "test_batch", *pictures(1))
    with path.open("r+b") as file:
        file.truncate(RECORD * 1_000_000)  # sparse: takes no room
    with pytest.raises(DataError, match=r"test_batch.bin"):
        load_cifar10(tmp_path)


def test_folders_that_are_not_there_or_not_right(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{BINARY_FOLDER}.*{PYTHON_FOLDER}"):
        load_cifar10(tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        load_cifar10(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file is a file"):
        load_cifar10(tmp_path / "file")
    write_binary(tmp_path, "test_batch", *pictures(1))
    with pytest.raises(DataError, match=r"data_batch_1.bin"):
        load_cifar10(tmp_path, "train")
    with pytest.raises(UsageError, match="'val'"):
        load_cifar10(tmp_path, "val")  # type: ignore[arg-type]


@pytest.mark.parametrize("root", [None, 3, b"data", "", "a\0b"])
def test_what_is_no_path_is_refused(root: Any) -> None:
    for use in (load_cifar10, download_cifar10, load_predictions, Predictions):
        with pytest.raises(UsageError, match=r"root|folder"):
            use(root)


@pytest.mark.parametrize("name", ["url", "md5"])
def test_an_address_is_text(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=name):
        download_cifar10(tmp_path, **{name: None})


IMAGES, LABELS = pictures(2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "list"),
        ({b"labels": [1]}, "'data'"),
        ({b"data": IMAGES.reshape(2, -1)}, "'labels'"),
        ({b"data": IMAGES.reshape(2, -1)[:, :-1], b"labels": [1, 2]}, r"\(2, 3071\)"),
        ({b"data": IMAGES.reshape(2, -1), b"labels": [1]}, r"\b2 .*\b1 "),
        ({b"data": IMAGES.reshape(2, -1), b"labels": [1, 10]}, "label 1 is 10"),
        ({b"data": IMAGES.reshape(2, -1), b"labels": [1, "2"]}, "label 1 is '2'"),
        ({b"data": IMAGES.reshape(2, -1), b"labels": [1, 1 << 100_000]}, "label 1 is .*int"),
        ({1 << 60: 1}, "'data'"),
        ({b"data": IMAGES.reshape(2, -1).astype(np.int64), b"labels": [1, 2]}, "dtype 'i8'"),
        ({b"data": np.array([{}, {}]), b"labels": [1, 2]}, "dtype 'O8'"),
    ],
)
def test_python_files_that_hold_something_else(tmp_path: Path, content: Any, message: str) -> None:
    write_python(tmp_path, "test_batch", content)
    with pytest.raises(DataError, match=message):
        load_cifar10(tmp_path)


class _Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("call", ["system", "getattr", "load", "huge"])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, call: str) -> None:
    trap = tmp_path / "trap"
    arm = f"open({str(trap)!r}, 'w').close()"
    hostile = {
        "system": _Call(os.system, f"touch {trap}"),
        # Reaching something dangerous through something harmless.
        "getattr": _Call(getattr, _Call(__import__, "os"), "system"),
        "load": _Call(eval, arm),
        "huge": _Call(np.zeros, (1 << 40,), np.uint8),
    }[call]
    write_python(tmp_path, "test_batch", {b"data": hostile, b"labels": []})
    with pytest.raises(DataError, match="not run"):
        load_cifar10(tmp_path)
    assert not trap.exists()


def test_lists_that_share_themselves_do_not_swell_the_message(tmp_path: Path) -> None:
    bomb: list[Any] = [0]
    for _ in range(16):  # written out, 65,536 zeros
        bomb = [bomb, bomb]
    write_python(tmp_path, "test_batch", {b"data": IMAGES[:1].reshape(1, -1), b"labels": [bomb]})
    with pytest.raises(DataError, match="label 0 is") as caught:
        load_cifar10(tmp_path)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


@given(st.binary(max_size=300), st.integers(0, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_pickle_is_a_data_error(tmp_path: Path, noise: bytes, at: int) -> None:
    path = write_python(tmp_path, "test_batch", batch(*pictures(1)))
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        load_cifar10(tmp_path)
    except DataError as error:
        assert "test_batch" in str(error)


@pytest.mark.skipif("CIFAR10_ROOT" not in os.environ, reason="CIFAR10_ROOT names no real CIFAR-10")
def test_real_cifar10() -> None:
    dataset = load_cifar10(os.environ["CIFAR10_ROOT"])
    assert dataset.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(dataset.labels).tolist() == [1000] * 10
