"""Subclasses of the tensor template that are wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from disteval import framing

from suites.mutants.broken.base import MUTANTS
from suites.mutants.correct import TensorTemplate


class TensorMutant(TensorTemplate):
    """The tensor template over NumPy arrays, until a subclass breaks it."""

    breaks: ClassVar[str]

    def __init_subclass__(cls) -> None:
        MUTANTS.append(cls)


class TensorOfAnotherPickle(TensorMutant):
    breaks = "9.1"

    def _object_to_tensor(self, obj: Any) -> Any:
        return np.frombuffer(bytes(framing.encode(obj)) + b"\0", np.uint8)

    def _tensor_to_object(self, tensor: Any, size: int, rank: int) -> Any:
        return framing.decode(tensor[: size - 1].tobytes(), rank)


class TensorWithTwoDimensions(TensorMutant):
    breaks = "9.1"

    def _object_to_tensor(self, obj: Any) -> Any:
        return super()._object_to_tensor(obj)[:, None]

    def _pad_tensor(self, tensor: Any, size: int) -> Any:
        return super()._pad_tensor(tensor[:, 0], size)[:, None]


class TrimsNothing(TensorMutant):
    breaks = "9.2"

    def _tensor_to_object(self, tensor: Any, size: int, rank: int) -> Any:
        return framing.decode(tensor.tobytes(), rank)


class PadsInFront(TensorMutant):
    breaks = "9.2"

    def _pad_tensor(self, tensor: Any, size: int) -> Any:
        return np.roll(super()._pad_tensor(tensor, size), size - len(tensor))


class PadsToAPowerOfTwo(TensorMutant):
    breaks = "9.2"

    def _pad_tensor(self, tensor: Any, size: int) -> Any:
        return super()._pad_tensor(tensor, 1 << (size - 1).bit_length())


class TensorsInReverse(TensorMutant):
    breaks = "9.3"

    def _all_gather(self, tensor: Any) -> list[Any]:
        return super()._all_gather(tensor)[::-1]


class TensorOfRank0(TensorMutant):
    breaks = "9.3"

    def _broadcast(self, tensor: Any, src: int) -> Any:
        return super()._all_gather(tensor)[0]
