"""Rule 9: what a subclass of `TensorBaseDistBackend` gives, without the template around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disteval.conformance.fingerprint import Seen, see
from disteval.conformance.rules import Bench, BrokenRuleError, NotApplicableError, rule
from disteval.templates import TensorBaseDistBackend
from disteval.worlds.collective_log import LoggedBackend

_SIZES = (0, 1, 257, 512, 1 << 16)


@rule("9.1", "template: bytes to a tensor and back")
def check_tensors(bench: Bench) -> None:
    """Of the tensor template: bytes become a flat tensor of their length, and bytes again."""
    for size, (shape, back) in _converted(bench, padding=0):
        if shape != (size,) or back != see(_bytes_of(size)):
            raise BrokenRuleError(
                f"its tensor has shape {shape} instead of {(size,)}; back comes {back.text}",
                f"{size} bytes",
            )


@rule("9.2", "template: padding")
def check_padding(bench: Bench) -> None:
    """Of the tensor template: padding follows the bytes, up to the length that was asked for."""
    for padding in (1, 4096):
        for size, (shape, back) in _converted(bench, padding):
            if shape != (size + padding,) or back != see(_bytes_of(size)):
                raise BrokenRuleError(
                    f"its tensor has shape {shape} instead of {(size + padding,)}; "
                    f"its first {size} bytes are {back.text}",
                    f"{size} bytes, padded by {padding}",
                )


@rule("9.3", "template: collectives of tensors")
def check_tensor_collectives(bench: Bench) -> None:
    """Of the tensor template: tensors of one length arrive, entry r from rank r or from src."""
    _need_template(bench)
    world = bench.world_size
    if world == 1:
        raise NotApplicableError("alone, a rank moves no tensors")
    for size in (64, 512, 1 << 16):  # the template passes no others than multiples of 64
        sent = [see(bytes([rank]) * size) for rank in range(world)]
        example = f"every rank passes a tensor of {size} bytes: gathered, broadcast from each src"
        bench.expect(move_tensors, [size] * world, [(sent, sent)] * world, example)


def _need_template(bench: Bench) -> None:
    if not issubclass(bench.cls, TensorBaseDistBackend):
        raise NotApplicableError("it is not a subclass of TensorBaseDistBackend")


def _converted(bench: Bench, padding: int) -> Iterator[tuple[int, tuple[tuple[int, ...], Seen]]]:
    """Every size of bytes, and what each rank made of it."""
    _need_template(bench)
    for size in _SIZES:
        tasks = [(size, padding)] * bench.world_size
        for found in bench.run(convert, tasks, f"{size} bytes, padded by {padding}"):
            yield size, found


def _bytes_of(size: int) -> bytes:
    return (bytes(range(1, 256)) * (size // 255 + 1))[:size]


def convert(backend: LoggedBackend, task: tuple[int, int]) -> tuple[tuple[int, ...], Seen]:
    """Return the shape of the tensor of some bytes, and the bytes that it gives back."""
    inner = _template(backend)
    size, padding = task
    tensor = inner._to_tensor(_bytes_of(size), size + padding)
    back = bytes(memoryview(inner._to_bytes(tensor))[:size])
    return tuple(int(length) for length in tensor.shape), see(back)


def move_tensors(backend: LoggedBackend, size: int) -> tuple[list[Seen], list[Seen]]:
    """Move tensors of one length with both tensor collectives, without the template around them."""
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
        raise TypeError(f"{type(backend.inner).__name__} is no TensorBaseDistBackend")
    return backend.inner
