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
        for name, array, kind, ndim in (
            ("images", self.images, np.uint8, 4), ("labels", self.labels, np.int64, 1)
        ):  # fmt: skip
            found = array if isinstance(array, np.ndarray) else np.asarray(array, object)
            if found.dtype != kind or found.ndim != ndim:
                raise UsageError(
                    f"{name} must be a NumPy array of {np.dtype(kind)} with {ndim} axes, not a "
                    f"{type(array).__name__} of {found.dtype} of shape {found.shape}"
                )
        if len(self.labels) != len(self.images):
            raise UsageError(f"there are {len(self.images)} images and {len(self.labels)} labels")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            raise UsageError(
                f"labels[{wrong[0]}] is {self.labels[wrong[0]]}, and {len(wrong)} of {len(self)} "
                f"labels are not from 0 to {len(self.classes) - 1}; name every class in classes, "
                f"or mend the labels"
            )

    def __len__(self) -> int:
        return len(self.labels)
