"""The checks of rule 9: the methods that a subclass of `TensorBaseDistBackend` implements."""

from __future__ import annotations

from typing import Any

from disteval.conformance.fingerprint import Seen, see
from disteval.conformance.rules import Bench, NotApplicableError, rule
from disteval.templates import TensorBaseDistBackend
from disteval.worlds.collective_log import LoggedBackend

_SIZES = (0, 1, 257, 512, 1 << 16)


@rule("9.1", "template: bytes to a tensor and back")
def check_tensors(bench: Bench) -> None:
    """A tensor template turns bytes into a flat tensor of their length, and back into bytes."""
    _check_conversions(bench, padding=0)


@rule("9.2", "template: padding")
def check_padding(bench: Bench) -> None:
    """A tensor template pads after the bytes, up to the length that was asked for."""
    for padding in (1, 4096):
        _check_conversions(bench, padding)


@rule("9.3", "template: collectives of tensors")
def check_tensor_collectives(bench: Bench) -> None:
    """A tensor template gathers tensors of equal length by rank, and broadcasts them from src."""
    _need_template(bench)
    world = bench.world_size
    if world == 1:
        raise NotApplicableError("at world size 1 no tensor is moved")
    for size in (64, 512, 1 << 16):  # the template passes only multiples of 64
        sent = [see(bytes([rank]) * size) for rank in range(world)]
        example = f"every rank gathers a tensor of {size} bytes, and broadcasts one from each src"
        bench.expect(move_tensors, [size] * world, [(sent, sent)] * world, example)


def _need_template(bench: Bench) -> None:
    if not issubclass(bench.cls, TensorBaseDistBackend):
        raise NotApplicableError("the backend is not a subclass of TensorBaseDistBackend")


def _check_conversions(bench: Bench, padding: int) -> None:
    _need_template(bench)
    world = bench.world_size
    for size in _SIZES:
        expected = [((size + padding,), see(_bytes_of(size)))] * world
        example = f"{size} bytes, padded by {padding}: the tensor's shape, and the bytes it becomes"
        bench.expect(convert, [(size, padding)] * world, expected, example)


def _bytes_of(size: int) -> bytes:
    return (bytes(range(1, 256)) * (size // 255 + 1))[:size]


def convert(backend: LoggedBackend, task: tuple[int, int]) -> tuple[tuple[int, ...], Seen]:
    """Return the shape of the tensor of some bytes, and the bytes into which it turns back."""
    inner = _template(backend)
    size, padding = task
    tensor = inner._to_tensor(_bytes_of(size), size + padding)
    back = bytes(memoryview(inner._to_bytes(tensor))[:size])
    return tuple(int(length) for length in tensor.shape), see(back)


def move_tensors(backend: LoggedBackend, size: int) -> tuple[list[Seen], list[Seen]]:
    """Call both tensor collectives directly, with tensors of one length."""
    inner = _template(backend)

    def tensor() -> Any:
        return inner._to_tensor(bytes([inner.rank]) * size, size)

    def bytes_of(tensor: Any) -> Seen:
        return see(bytes(memoryview(inner._to_bytes(tensor))[:size]))

    gathered = [bytes_of(other) for other in inner._all_gather_tensor(tensor())]
    sent = [bytes_of(inner._broadcast_tensor(tensor(), src)) for src in range(inner.world_size)]
    return gathered, sent


def _template(backend: LoggedBackend) -> TensorBaseDistBackend[Any]:
    if not isinstance(backend.inner, TensorBaseDistBackend):
        raise TypeError(f"{type(backend.inner).__name__} is not a TensorBaseDistBackend")
    return backend.inner
