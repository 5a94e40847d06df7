"""The contract between the harness and a communication library.

A backend adapter subclasses `BaseDistBackend`, or `TensorBaseDistBackend` where its library moves
tensors of one shape, and gives five things: `is_initialized`, `rank`, `world_size`,
`all_gather_object` and `broadcast_object`. Everything else has a default.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from disteval import framing
from disteval.arguments import is_count
from disteval.errors import HarnessError, IncompleteFrameError, UsageError
from disteval.wire import BLOCK_BYTES, NO_CALL, Call, mispaired

Tensor = TypeVar("Tensor")


@dataclass(frozen=True)
class No:
    """A capability that a backend does not have, and why. It is false."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do beyond the contract; each "no" is a `No` that carries its reason.

    Attributes:
        multi_rank: It can join more than one process.
        propagates_errors: An object that one rank can't serialise is an error on every rank, and
            the next collective works.
        detects_lost_ranks: A collective ends in an error on the survivors when a rank has ended,
            within the bound.
        bounded_waits: A collective ends in an error when a rank never comes to it, frozen or busy
            elsewhere, within the bound.
        grace: The bound in seconds, beyond `Rendezvous.timeout`.
    """

    multi_rank: bool | No = True
    propagates_errors: bool | No = True
    detects_lost_ranks: bool | No = True
    bounded_waits: bool | No = True
    grace: float = 3.0


class Exchange(Protocol):
    """Carries values from the rank that publishes them to those that ask."""

    def publish(self, key: str, value: str | bytes) -> None:
        """Give a value to whoever asks for its key."""

    def lookup(self, key: str, timeout: float) -> str | bytes:
        """Return the value of a key, once it is there."""


@dataclass(frozen=True)
class Rendezvous:
    """What ranks need to find each other before they can talk.

    Attributes:
        directory: What `path` returns; None where the ranks share no file system.
        host: The address on which rank 0 may listen; loopback unless the user said otherwise.
        port: A port on ``host`` that was free when it was picked.
        timeout: Seconds that any wait for another rank may take.
        exchange: What carries published values; the harness gives it to each rank.
        own_host: The address on which this rank may listen; ``host`` on one host.
    """

    directory: Path | None
    host: str = "127.0.0.1"
    port: int = 0
    timeout: float = 60.0
    exchange: Exchange | None = None
    own_host: str = "127.0.0.1"

    @property
    def path(self) -> Path:
        """A private directory, empty at the start, on a file system that all ranks share.

        Raises:
            UsageError: The ranks are on several hosts, and share none.
        """
        if self.directory is None:
            raise UsageError(
                "the ranks are on several hosts and share no directory; they can meet at `host` "
                "and `port`, or by what they publish and look up"
            )
        return self.directory

    def publish(self, key: str, value: str | bytes) -> None:
        """Give a value, such as the address one has bound, to every rank that asks for its key.

        Raises:
            UsageError: The value is over 1 MiB, or there is nothing that carries it.
        """
        self._carrier().publish(key, value)

    def lookup(self, key: str) -> str | bytes:
        """Return the value of a key, once a rank has published it.

        Raises:
            TimeoutError: Nobody did within `timeout` seconds.
            UsageError: There is nothing that carries values.
        """
        return self._carrier().lookup(key, self.timeout)

    def _carrier(self) -> Exchange:
        if self.exchange is None:
            raise UsageError(
                "this Rendezvous has no exchange; ranks that the harness starts get one, others "
                "can meet in `path` or at `host` and `port`"
            )
        return self.exchange


class BaseDistBackend(ABC):
    """What the harness needs of a communication library.

    Attributes:
        launcher: How the harness starts this backend's ranks: ``local``, ``mpirun``, ``torchrun``,
            ``horovodrun``, ``threads``, ``ray``, or one that was registered.
        capabilities: What it can do beyond the contract.
        library: The distribution that it speaks for, as pip calls it; empty for none.
        devices: Where its objects travel: ``cpu``, ``cuda``, or both.
    """

    launcher: ClassVar[str] = "local"
    library: ClassVar[str] = ""
    devices: ClassVar[str] = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities()

    @property
    @abstractmethod
    def is_initialized(self) -> bool:
        """Whether this process has joined a group."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's rank, from 0 to ``world_size - 1``; 0 when not initialised."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """The number of ranks; 1 when not initialised."""

    @abstractmethod
    def all_gather_object(self, obj: Any) -> list[Any]:
        """Gather one object from each rank; every rank must call it.

        Args:
            obj: This rank's object. It is not changed.

        Returns:
            A new list of length ``world_size``: entry r is a copy of rank r's object.

        Raises:
            RankError: On every rank, when one rank's object can't be serialised.
        """

    @abstractmethod
    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Send rank ``src``'s object to every rank; every rank must call it with the same ``src``.

        Args:
            obj: The object to send; ignored on ranks other than ``src``.
            src: The sending rank.

        Returns:
            A copy of rank ``src``'s object, on rank ``src`` too.

        Raises:
            UsageError: On every rank, when ``src`` is not a rank.
            RankError: On every rank, when the object can't be serialised.
        """

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the group. The default does nothing: the launcher or the library has joined it."""

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group. The default does nothing."""

    def _next_call(self, src: int | None = None) -> Call:
        """Number the collective that begins: an all-gather, or a broadcast from ``src``.

        Frames carry the number, so ranks whose collectives are mispaired are told so instead of
        getting each other's objects.
        """
        return Call(next(self._numbers()), 0 if src is None else src + 1)

    def _numbers(self) -> Iterator[int]:
        """Return what numbers this rank's collectives; all objects of one group must share it."""
        numbers: Iterator[int] = self.__dict__.setdefault("_own_numbers", itertools.count(1))
        return numbers

    def _check_src(self, src: int) -> None:
        """Refuse a ``src`` that is no rank; every rank knows the answer without communicating."""
        if not is_count(src, 0, self.world_size - 1):
            raise UsageError(
                f"src={src!r} is not a rank; give an integer from 0 to {self.world_size - 1}"
            )


class TensorBaseDistBackend(BaseDistBackend, Generic[Tensor]):
    """Template for libraries that move tensors of one shape.

    A subclass gives the five methods below and inherits both object collectives: one tensor
    collective for an object that fits a frame's block, two for larger ones, which are padded to the
    largest.
    """

    @abstractmethod
    def _object_to_tensor(self, obj: Any) -> Tensor:
        """Return `disteval.framing.encode` of ``obj`` as a 1-D uint8 tensor."""

    @abstractmethod
    def _tensor_to_object(self, tensor: Tensor, size: int, rank: int) -> Any:
        """Return `disteval.framing.decode` of the first ``size`` bytes, sent by ``rank``."""

    @abstractmethod
    def _pad_tensor(self, tensor: Tensor, size: int) -> Tensor:
        """Return ``tensor`` lengthened to ``size`` elements; what is added may hold anything."""

    @abstractmethod
    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Gather tensors of one length; entry r is rank r's."""

    @abstractmethod
    def _broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s tensor; every rank passes one of the same length."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        call = self._next_call()
        payload: Any = self._object_to_tensor(framing.Numbered(obj, call))
        if self.world_size == 1:
            return [self._open(payload, int(payload.shape[0]), 0, call)]
        blocks = self._all_gather(payload[:BLOCK_BYTES])
        try:
            return [self._open(block, BLOCK_BYTES, rank, call) for rank, block in enumerate(blocks)]
        except HarnessError:
            # Whatever it is, when anybody's frame goes on, all ranks are in the next collective.
            sizes = [self._frame_size(block, rank) for rank, block in enumerate(blocks)]
            if max(sizes) == BLOCK_BYTES:
                raise
        payloads = self._all_gather(self._pad_tensor(payload, max(sizes)))
        return [
            self._open(payload, size, rank, call)
            for rank, (payload, size) in enumerate(zip(payloads, sizes, strict=True))
        ]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        call = self._next_call(src)
        mine = framing.Numbered(obj if self.rank == src else None, call)
        payload: Any = self._object_to_tensor(mine)
        if self.world_size == 1:
            return self._open(payload, int(payload.shape[0]), src, call)
        block = self._broadcast(payload[:BLOCK_BYTES], src)
        try:
            return self._open(block, BLOCK_BYTES, src, call)
        except IncompleteFrameError as error:
            framing.check_size(size := error.size, src)
        # Only src's payload is longer than a block, so the others can always pad to its size.
        payload = self._broadcast(self._pad_tensor(payload, size), src)
        return self._open(payload, size, src, call)

    def _open(self, tensor: Tensor, size: int, rank: int, call: Call) -> Any:
        found = self._tensor_to_object(tensor, size, rank)
        obj, other = found if type(found) is framing.Numbered else (found, NO_CALL)
        if other != call:
            raise mispaired(other, call, rank)
        return obj

    def _frame_size(self, block: Tensor, rank: int) -> int:
        try:
            self._tensor_to_object(block, BLOCK_BYTES, rank)
        except IncompleteFrameError as error:
            framing.check_size(error.size, rank)
            return error.size
        except HarnessError:  # of a whole frame; who opens it gets it again
            pass
        return BLOCK_BYTES
