"""The form of every data set in memory."""

from __future__ import annotations

from dataclasses import dataclass

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
        UsageError: An array has another dtype or shape.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UsageError(
                f"images must be a uint8 array of shape (N, C, H, W), "
                f"not {self.images.dtype} of shape {self.images.shape}"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != (len(self.images),):
            raise UsageError(
                f"labels must be an int64 array of shape ({len(self.images)},), "
                f"not {self.labels.dtype} of shape {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)
