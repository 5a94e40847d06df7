"""Conversion of weights to the layout of libraries that keep the channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_TO_CHANNELS_LAST = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
"""By number of axes: (out, in, height, width) to (height, width, in, out), and so on."""


def to_channels_last(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Convert a weight from torch's layout to that of Flax and Keras."""
    return np.ascontiguousarray(array.transpose(_TO_CHANNELS_LAST[array.ndim]))


def from_channels_last(array: Any) -> npt.NDArray[np.float32]:
    """Convert a weight from the layout of Flax and Keras to torch's."""
    found = np.asarray(array)
    return np.ascontiguousarray(found.transpose(np.argsort(_TO_CHANNELS_LAST[found.ndim])))
