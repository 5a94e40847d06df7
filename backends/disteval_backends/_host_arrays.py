"""The tensor template for libraries that take NumPy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from disteval import framing
from disteval.contract import TensorBaseDistBackend
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class HostArrayDist(TensorBaseDistBackend[Bytes]):
    """Frames as uint8 arrays in host memory; a subclass gives the two tensor collectives.

    For libraries with one group a process: its collectives are numbered for the class.
    """

    _calls: ClassVar[Iterator[int]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._number_anew()

    @classmethod
    def _number_anew(cls) -> None:
        """Begin at 1; for `init_process`."""
        cls._calls = itertools.count(1)

    def _numbers(self) -> Iterator[int]:
        return self._calls

    def _object_to_tensor(self, obj: Any) -> Bytes:
        return framing.encode_array(obj)

    def _tensor_to_object(self, tensor: Bytes, size: int, rank: int) -> Any:
        return framing.decode(tensor[:size].data, rank)

    def _pad_tensor(self, tensor: Bytes, size: int) -> Bytes:
        if len(tensor) == size:
            return tensor
        padded = np.empty(size, dtype=np.uint8)
        padded[: len(tensor)] = tensor
        return padded
