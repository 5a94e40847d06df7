"""The embedded data set is the same bytes on every machine and NumPy release."""

import hashlib
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data import load_embedded

# Taken once. Whatever changes them changes every accuracy that anybody has noted down.
DIGESTS = {
    "train": "94713f49a293349b1f40ff646a37afc5467fb264d872101cdeda340606071ccd",
    "test": "b9e9311978bdddbc10248b57e8203ec7a1d064b96b98effb1bb6a7a872814016",
}


def digest(split: Any) -> str:
    dataset = load_embedded(split)
    return hashlib.sha256(
        dataset.images.tobytes() + dataset.labels.astype("<i8").tobytes()
    ).hexdigest()


@pytest.mark.parametrize(("split", "size"), [("train", 2_000), ("test", 10_000)])
def test_shapes_and_classes(split: Any, size: int) -> None:
    dataset = load_embedded(split)
    assert dataset.images.shape == (size, 3, 32, 32)
    assert dataset.images.dtype == np.uint8
    assert dataset.labels.dtype == np.int64
    assert len(set(dataset.classes)) == 10
    # No class is rare: guessing one class is right for about a tenth.
    counts = np.bincount(dataset.labels, minlength=10)
    assert counts.min() > 0.08 * size
    assert counts.max() < 0.12 * size


@pytest.mark.parametrize("split", DIGESTS)
def test_the_bytes_are_pinned(split: str) -> None:
    assert digest(split) == DIGESTS[split]


def test_the_splits_share_no_picture() -> None:
    train = {picture.tobytes() for picture in load_embedded("train").images}
    assert not any(picture.tobytes() in train for picture in load_embedded("test").images)


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(UsageError, match="'validation'"):
        load_embedded("validation")  # type: ignore[arg-type]
