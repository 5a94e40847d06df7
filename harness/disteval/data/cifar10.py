"""CIFAR-10 from files in the binary layout.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_path
from disteval.data.base import ArrayDataset
from disteval.errors import DataError, UsageError

BINARY_FOLDER = "cifar-10-batches-bin"
PYTHON_FOLDER = "cifar-10-batches-py"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_TRAIN_FILES = 5
# An official file has 10,000 records; nothing larger than twice that is read into memory.
_MAX_BYTES = 20_000 * _RECORD

_Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def load_cifar10(
    root: str | os.PathLike[str], split: Literal["train", "test"] = "test"
) -> ArrayDataset:
    """Read one split into memory.

    If some of the five training files are missing, the others are read, and the data set's name
    says so. The layout of pickles, ``cifar-10-batches-py``, is not read: a pickle can run anything.

    Args:
        root: The folder that holds ``cifar-10-batches-bin``, or that folder itself.
        split: ``train`` or ``test``.

    Returns:
        The pictures, uint8 of shape (N, 3, 32, 32), and the labels, int64 of shape (N,).

    Raises:
        UsageError: ``root`` is no path, or ``split`` is not known.
        DataError: The folder or a file is missing, truncated or not CIFAR-10; names the file and
            the offset in bytes.
    """
    check_choice("split", split, ("train", "test"))
    folder = _find_folder(check_path("root", root))
    names = _file_names(split)
    present = [folder / name for name in names if (folder / name).is_file()]
    if not present:
        raise DataError(f"{folder} has no file {names[0]}; give a complete copy of CIFAR-10")
    batches = [_read(path) for path in present]
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    part = "" if len(present) == len(names) else f" ({len(present)} of {len(names)} files)"
    return ArrayDataset(f"cifar10/{split}{part}", images, labels, CLASSES)


def download_cifar10(root: str | os.PathLike[str], *, url: str = URL, md5: str = MD5) -> Path:
    """Download the official archive into ``root``, unless CIFAR-10 is there already.

    The archive is checked, unpacked into a temporary folder and renamed, so an interrupted download
    leaves nothing that looks complete. If only some of the six files are there, nothing is changed:
    they may be the user's own, and files of two origins must not mix.

    Args:
        root: The folder to put ``cifar-10-batches-bin`` into; it is created. Nothing is downloaded
            if `load_cifar10` would find all six files.
        url: The archive's address, which may be a mirror's.
        md5: The archive's MD5 checksum.

    Returns:
        ``root``, for `load_cifar10`.

    Raises:
        UsageError: An argument is of another kind.
        DataError: The archive can't be downloaded or has another checksum; or ``root`` holds only a
            part of CIFAR-10.
    """
    root = check_path("root", root)
    for name, value in (("url", url), ("md5", md5)):
        if not isinstance(value, str):
            raise UsageError(
                f"{name} must be a string, or left out for the official archive, not {value!r}"
            )
    folder = _find_files(root) or root / BINARY_FOLDER
    names = _file_names("train") + _file_names("test")
    missing = [name for name in names if not (folder / name).is_file()]
    if 0 < len(missing) < len(names):
        raise DataError(
            f"{folder} holds a part of CIFAR-10, without {', '.join(missing)}; move it away to "
            f"fetch the whole, or leave out --download to use what is there"
        )
    if missing:
        # It imports what speaks HTTPS, which takes as long as a third of NumPy.
        from disteval.data.download import fetch_archive

        fetch_archive(url, md5, root, BINARY_FOLDER)
    return root


def _file_names(split: str) -> list[str]:
    if split == "test":
        return ["test_batch.bin"]
    return [f"data_batch_{i}.bin" for i in range(1, _TRAIN_FILES + 1)]


def _find_folder(root: Path) -> Path:
    """Return the folder with the files."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise DataError(f"the data folder {root} {what}; give a folder that holds {BINARY_FOLDER}")
    found = _find_files(root)
    if found is None:
        pickles = root / PYTHON_FOLDER
        there = f" ({pickles.name} is not read, for it holds pickles)" * pickles.is_dir()
        raise DataError(
            f"the data folder {root} does not hold {BINARY_FOLDER}{there}; put CIFAR-10 there, or "
            f"let --download fetch it"
        )
    return found


def _find_files(root: Path) -> Path | None:
    """Return which folder has the files: one in ``root``, or ``root``; None if neither has any."""
    if (root / BINARY_FOLDER).is_dir():
        return root / BINARY_FOLDER
    names = _file_names("train") + _file_names("test")
    return root if any((root / name).is_file() for name in names) else None


def _read(path: Path) -> _Arrays:
    """Read records of one label byte and 3,072 pixels."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise DataError(f"{path} has {size} bytes, more than any file of CIFAR-10")
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error
    if not len(data):
        raise DataError(f"{path} is empty")
    whole, rest = divmod(len(data), _RECORD)
    if rest:
        raise DataError(
            f"{path} is truncated: the record at offset {whole * _RECORD} has {rest} of "
            f"{_RECORD} bytes"
        )
    records = data.reshape(whole, _RECORD)
    labels = records[:, 0]
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if len(wrong):
        raise DataError(
            f"{path}: the label at offset {wrong[0] * _RECORD} is {labels[wrong[0]]}; "
            f"labels go from 0 to 9"
        )
    return records[:, 1:].reshape(whole, 3, 32, 32), labels.astype(np.int64)
