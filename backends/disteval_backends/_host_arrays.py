"""The tensor template for libraries that take NumPy arrays."""

from __future__ import annotations

import numpy as np
from disteval.frames import Buffer
from disteval.templates import TensorBaseDistBackend
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class HostArrayDist(TensorBaseDistBackend[Bytes]):
    """Tensors are uint8 arrays in host memory; a subclass gives the two collectives."""

    def _to_tensor(self, data: Buffer, size: int) -> Bytes:
        tensor = np.empty(size, dtype=np.uint8)
        tensor[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return tensor

    def _to_bytes(self, tensor: Bytes) -> Buffer:
        return tensor.data
