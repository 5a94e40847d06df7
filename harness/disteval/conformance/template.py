"""Rule 9: what a subclass of `TensorBaseDistBackend` gives, without the template around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disteval import framing
from disteval.conformance.fingerprint import Seen, describe, see
from disteval.conformance.objects import ARRAYS, SPECIAL, as_sent
from disteval.conformance.rules import Bench, BrokenRuleError, NotApplicableError, rule
from disteval.contract import TensorBaseDistBackend
from disteval.worlds.journal import JournalledBackend


@rule("9.1", "template: an object's tensor")
def check_tensors(bench: Bench) -> None:
    """Of the tensor template: an object's tensor is its frame, flat, and gives the object back."""
    for obj, (shape, back, _) in _tensors(bench):
        length = len(framing.encode(obj))
        if shape != (length,) or back != see(obj):
            raise BrokenRuleError(
                f"its tensor has shape {shape}, its frame {length} bytes; back comes {back.text}",
                describe(obj),
            )


@rule("9.2", "template: padding and trimming")
def check_padding(bench: Bench) -> None:
    """Of the tensor template: padding lengthens a tensor, and the object is what it was before."""
    for obj, (_, _, padded) in _tensors(bench):
        if padded != [see(obj)] * len(padded):
            found = ", ".join(back.text for back in padded)
            raise BrokenRuleError(f"padded by 0, 1 and 4096 it gives back {found}", describe(obj))


@rule("9.3", "template: collectives of tensors")
def check_tensor_collectives(bench: Bench) -> None:
    """Of the tensor template: tensors of one length arrive, entry r from rank r or from src."""
    _need_template(bench)
    world = bench.world_size
    if world == 1:
        raise NotApplicableError("alone, a rank moves no tensors")
    for size in (0, 1, 257, 1 << 16):
        sent = [see(bytes([rank]) * size) for rank in range(world)]
        example = f"every rank passes a tensor of {size} bytes: gathered, broadcast from each src"
        bench.expect(move_tensors, [size] * world, [(sent, sent)] * world, example)


def _need_template(bench: Bench) -> None:
    if not issubclass(bench.cls, TensorBaseDistBackend):
        raise NotApplicableError("it is no subclass of TensorBaseDistBackend")


def _tensors(bench: Bench) -> Iterator[tuple[Any, Any]]:
    """Every kind of object, and what each rank made of it."""
    _need_template(bench)
    for obj in (*SPECIAL, *ARRAYS):
        obj = as_sent(obj)
        for found in bench.run(tensor_of, [obj] * bench.world_size, describe(obj)):
            yield obj, found


def tensor_of(backend: JournalledBackend, obj: Any) -> tuple[tuple[int, ...], Seen, list[Seen]]:
    """An object's tensor: its shape, what it gives back, and what padded ones give back."""
    inner = _template(backend)
    tensor = inner._object_to_tensor(obj)
    size = int(tensor.shape[0])
    back = []
    for more in (0, 1, 4096):
        padded = inner._pad_tensor(tensor, size + more)
        if tuple(padded.shape) != (size + more,):
            raise ValueError(f"padded to {size + more} it has shape {tuple(padded.shape)}")
        back.append(see(inner._tensor_to_object(padded, size, inner.rank)))
    shape = tuple(int(length) for length in tensor.shape)
    return shape, see(inner._tensor_to_object(tensor, size, inner.rank)), back


def move_tensors(backend: JournalledBackend, size: int) -> tuple[list[Seen], list[Seen]]:
    """Move tensors of one length with both tensor collectives, without the template around them."""
    inner = _template(backend)

    def tensor() -> Any:
        return inner._object_to_tensor(bytes([inner.rank]) * size)

    length = int(tensor().shape[0])
    gathered = [
        see(inner._tensor_to_object(other, length, rank))
        for rank, other in enumerate(inner._all_gather(tensor()))
    ]
    sent = [
        see(inner._tensor_to_object(inner._broadcast(tensor(), src), length, src))
        for src in range(inner.world_size)
    ]
    return gathered, sent


def _template(backend: JournalledBackend) -> TensorBaseDistBackend[Any]:
    if not isinstance(backend.inner, TensorBaseDistBackend):
        raise TypeError(f"{type(backend.inner).__name__} is no TensorBaseDistBackend")
    return backend.inner
