"""CIFAR-10 is read, and damaged files are refused."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import DataError, UsageError
from disteval.data import Predictions, download_cifar10, load_cifar10, load_predictions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suites.helpers.data import BINARY_FOLDER

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


@given(st.integers(1, 5), st.integers(0, 1000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_give_the_pictures_and_labels(tmp_path: Path, count: int, seed: int) -> None:
    images, labels = pictures(count, seed)
    write_binary(tmp_path, "test_batch", images, labels)
    dataset = load_cifar10(tmp_path)
    assert np.array_equal(dataset.images, images)
    assert np.array_equal(dataset.labels, labels)
    assert dataset.images.dtype == np.uint8
    assert dataset.labels.dtype == np.int64
    assert dataset.images.flags.c_contiguous
    assert len(set(dataset.classes)) == 10
    assert dataset.name == "cifar10/test"


def test_the_folder_itself_may_be_given(tmp_path: Path) -> None:
    images, labels = pictures(3)
    write_binary(tmp_path, "test_batch", images, labels)
    assert len(load_cifar10(tmp_path / BINARY_FOLDER)) == 3


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
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=rf"{BINARY_FOLDER}.*cifar-10-batches-py.*pickles"):
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


@pytest.mark.skipif("CIFAR10_ROOT" not in os.environ, reason="CIFAR10_ROOT names no real CIFAR-10")
def test_real_cifar10() -> None:
    dataset = load_cifar10(os.environ["CIFAR10_ROOT"])
    assert dataset.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(dataset.labels).tolist() == [1000] * 10
