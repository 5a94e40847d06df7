"""Backends of the tensor template that are broken."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from suites.mutants.broken.base import MUTANTS
from suites.mutants.correct import TensorTemplate


class TensorMutant(TensorTemplate):
    """A correct backend of the tensor template, which subclasses break."""

    breaks: ClassVar[str]

    def __init_subclass__(cls) -> None:
        MUTANTS.append(cls)


class TensorOfBytesReversed(TensorMutant):
    breaks = "9.1"

    def _to_tensor(self, data: Any, size: int) -> Any:
        return super()._to_tensor(bytes(data)[::-1], size)


class TensorWithTwoDimensions(TensorMutant):
    breaks = "9.1"

    def _to_tensor(self, data: Any, size: int) -> Any:
        return super()._to_tensor(data, size)[:, None]


class BytesWithoutTheLast(TensorMutant):
    breaks = "9.1"

    def _to_bytes(self, tensor: Any) -> Any:
        return super()._to_bytes(tensor)[:-1]


class PadsInFront(TensorMutant):
    breaks = "9.2"

    def _to_tensor(self, data: Any, size: int) -> Any:
        return np.roll(super()._to_tensor(data, size), size - len(data))


class PadsToAPowerOfTwo(TensorMutant):
    breaks = "9.2"

    def _to_tensor(self, data: Any, size: int) -> Any:
        return super()._to_tensor(data, size if len(data) == size else 1 << size.bit_length())


class TensorsInReverse(TensorMutant):
    breaks = "9.3"

    def _all_gather_tensor(self, tensor: Any) -> list[Any]:
        return super()._all_gather_tensor(tensor)[::-1]


class TensorOfRank0(TensorMutant):
    breaks = "9.3"

    def _broadcast_tensor(self, tensor: Any, src: int) -> Any:
        return super()._all_gather_tensor(tensor)[0]
