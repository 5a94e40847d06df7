"""The form of every data set in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError


@dataclass(frozen=True)
class ArrayDataset:
    """A labelled set of pictures in memory.

    Attributes:
        name: The name in reports, for example ``cifar10/test``.
        images: The pictures, uint8 of shape (N, C, H, W), with colours in R, G, B order.
        labels: The classes, int64 of shape (N,), each from 0 to ``len(classes) - 1``.
        classes: The class names, in label order.

    Raises:
        UsageError: An array has another dtype or shape, or a label is not the number of a class.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, array in (("images", self.images), ("labels", self.labels)):
            if not isinstance(array, np.ndarray):
                raise UsageError(
                    f"{name} has the type {type(array).__name__}; it must be a NumPy array, such "
                    f"as numpy.asarray makes of lists and tensors"
                )
        if self.images.ndim != 4:
            raise UsageError(
                f"images has the shape {self.images.shape}; it must be an array of shape "
                f"(N, C, H, W)"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != (len(self.images),):
            raise UsageError(
                f"labels must be an int64 array of shape ({len(self.images)},), "
                f"not {self.labels.dtype} of shape {self.labels.shape}"
            )
        check_samples(self.images, self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.labels)


def check_samples(images: Any, labels: Any, classes: Sequence[str] | None) -> None:
    """Refuse pictures that are not uint8, and labels that are not numbers of classes.

    Args:
        images: The pictures, an array of any kind.
        labels: The labels, an array of any kind.
        classes: The class names; None stands for any labels.

    Raises:
        UsageError: Says which values were found.
    """
    some = np.asarray(images[:100])
    if some.dtype != np.uint8:
        values = f" with values from {some.min():g} to {some.max():g}" if some.size else ""
        raise UsageError(
            f"images holds {some.dtype}{values}; it must hold uint8 from 0 to 255: scale and round "
            f"the values, and call .astype(np.uint8)"
        )
    if classes is None:
        return
    if isinstance(classes, str) or not hasattr(classes, "__len__"):
        raise UsageError(
            f"classes must be the names of the classes, such as ('cat', 'dog'), not "
            f"{classes!r:.200}"
        )
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "biuf":
        raise UsageError(
            f"labels holds {numbers.dtype}; it must hold the numbers of classes, from 0 to "
            f"{len(classes) - 1}"
        )
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(classes)))
    if len(wrong):
        raise UsageError(
            f"labels[{wrong[0]}] is {numbers[wrong[0]]}, and {len(wrong)} of {len(numbers)} labels "
            f"are not from 0 to {len(classes) - 1}; name every class in classes, or mend the labels"
        )
