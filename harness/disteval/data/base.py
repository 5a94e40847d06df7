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
        if self.images.dtype != np.uint8:
            some = self.images[:100]
            values = f" with values from {some.min():g} to {some.max():g}" if some.size else ""
            raise UsageError(
                f"images holds {some.dtype}{values}; it must hold uint8 from 0 to 255: scale and "
                f"round the values, and call .astype(np.uint8)"
            )
        if isinstance(self.classes, str) or not hasattr(self.classes, "__len__"):
            raise UsageError(
                f"classes must be the names of the classes, such as ('cat', 'dog'), not "
                f"{self.classes!r:.200}"
            )
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            raise UsageError(
                f"labels[{wrong[0]}] is {self.labels[wrong[0]]}, and {len(wrong)} of {len(self)} "
                f"labels are not from 0 to {len(self.classes) - 1}; name every class in classes, "
                f"or mend the labels"
            )

    def __len__(self) -> int:
        return len(self.labels)
