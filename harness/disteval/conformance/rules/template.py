"""Rules 9.1 to 9.3: the methods that a subclass of `TensorBaseDistBackend` implements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from disteval.conformance.bench import Bench
from disteval.conformance.rule import NotApplicableError, Trial, rule
from disteval.templates import TensorBaseDistBackend
from disteval.world.collective_log import LoggedBackend

_SIZES = (0, 1, 257, 512, 1 << 16)


@rule("9.1", "template: bytes to a tensor and back", of=TensorBaseDistBackend)
def check_tensors(bench: Bench) -> None:
    """A tensor template turns bytes into a flat tensor of their length, and back into bytes.

    Usually: the tensor has more than one dimension, or another dtype than bytes; flatten it,
    and convert no value.
    """
    _check_conversions(bench, [0])


@rule("9.2", "template: padding", of=TensorBaseDistBackend)
def check_padding(bench: Bench) -> None:
    """A tensor template pads after the bytes, up to the length that was asked for.

    Usually: the padding is in front of the bytes, or the tensor is padded to another size than
    the one asked for; put it behind them, and use size as it is.
    """
    _check_conversions(bench, [1, 4096])


@rule("9.3", "template: collectives of tensors", of=TensorBaseDistBackend)
def check_tensor_collectives(bench: Bench) -> None:
    """A tensor template gathers tensors of equal length by rank, and broadcasts them from src.

    Usually: the broadcast always takes the tensor of rank 0; give src to the library's
    broadcast as its root. Or the tensors are in another order than that of the ranks; return
    that of rank r at index r.
    """
    world = bench.world_size
    if world == 1:
        raise NotApplicableError("at world size 1 no tensor is moved")
    trials = []
    for size in (64, 512, 1 << 16):  # the template passes only multiples of 64
        sent = [bytes([rank]) * size for rank in range(world)]
        example = f"every rank gathers a tensor of {size} bytes, and broadcasts one from each src"
        trials.append(Trial([size] * world, [[*sent, *sent]] * world, example))
    bench.expect(move_tensors, trials)


def _check_conversions(bench: Bench, padding: Sequence[int]) -> None:
    world, trials = bench.world_size, []
    for more, size in itertools.product(padding, _SIZES):
        expected = [[(size + more,), _bytes_of(size)]] * world
        example = f"{size} bytes, padded by {more}: the tensor's shape, and the bytes it becomes"
        trials.append(Trial([(size, more)] * world, expected, example))
    bench.expect(convert, trials)


def _bytes_of(size: int) -> bytes:
    return (bytes(range(1, 256)) * (size // 255 + 1))[:size]


def convert(backend: LoggedBackend, task: tuple[int, int]) -> list[Any]:
    """Return the shape of the tensor of some bytes, and the bytes into which it turns back."""
    inner: Any = backend.inner
    size, padding = task
    tensor = inner._to_tensor(_bytes_of(size), size + padding)
    back = bytes(memoryview(inner._to_bytes(tensor))[:size])
    return [tuple(int(length) for length in tensor.shape), back]


def move_tensors(backend: LoggedBackend, size: int) -> list[Any]:
    """Call both tensor collectives directly, with tensors of one length."""
    inner: Any = backend.inner

    def tensor() -> Any:
        return inner._to_tensor(bytes([inner.rank]) * size, size)

    def bytes_of(tensor: Any) -> bytes:
        return bytes(memoryview(inner._to_bytes(tensor))[:size])

    gathered = [bytes_of(other) for other in inner._all_gather_tensor(tensor())]
    sources = range(inner.world_size)
    return [*gathered, *(bytes_of(inner._broadcast_tensor(tensor(), src)) for src in sources)]
