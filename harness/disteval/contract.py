"""The contract between the library and a communication library.

A backend is a class with five members: `is_initialized`, `rank`, `world_size`, `all_gather_object`
and `broadcast_object`. The templates in `disteval.templates` give the last two to a library that
moves bytes or tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Protocol

from disteval.errors import UsageError


@dataclass(frozen=True)
class No:
    """A capability that a backend does not have, and why. It is false."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a backend beyond the contract; a missing one is a `No` with its reason.

    Attributes:
        multi_rank: The backend can join more than one process.
        propagates_errors: An object that one rank cannot serialise is an error on every rank, and
            the next collective works.
        detects_lost_ranks: When a rank has ended, a collective is an error on all others within
            the bound.
        bounded_waits: When a rank never calls a collective, because it is frozen or busy, the
            collective is an error on all others within the bound.
        joins_again: Ranks that have left a group can join another one in the same processes.
        detects_mismatches: Ranks that call different collectives all get an error, and the next
            collective works.
        grace: The seconds that the bound adds to `Rendezvous.timeout`.
    """

    multi_rank: bool | No = True
    propagates_errors: bool | No = True
    detects_lost_ranks: bool | No = True
    bounded_waits: bool | No = True
    joins_again: bool | No = True
    detects_mismatches: bool | No = True
    grace: float = 3.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "grace" and not isinstance(value, bool | No):
                raise UsageError(
                    f"the capability {name} must be True, or No(reason) if the backend does not "
                    f"have it, not {value!r:.200}"
                )
        if not isinstance(self.grace, Real) or not self.grace >= 0:
            raise UsageError(
                f"grace must be a number of seconds from 0 up, not {self.grace!r:.200}"
            )

    def why_not(self, name: str) -> str:
        """Return why a backend does not have a capability; empty if it has it."""
        declared = getattr(self, name)
        if declared:
            return ""
        return (isinstance(declared, No) and declared.reason) or "no reason given"


class Exchange(Protocol):
    """A store that carries values from the rank that publishes them to the ranks that ask."""

    def publish(self, key: str, value: str | bytes) -> None:
        """Store a value under a key."""

    def lookup(self, key: str, timeout: float) -> str | bytes:
        """Return the value of a key as soon as a rank has published it."""


@dataclass(frozen=True)
class Rendezvous:
    """The means by which ranks find each other before they can communicate.

    Attributes:
        directory: The directory that `path` returns; None where the ranks share no file system.
        host: The address on which rank 0 may listen; loopback unless the user chose another.
        port: A port on ``host`` that was free when it was picked.
        timeout: The seconds that any wait for another rank may take.
        exchange: The store behind `publish` and `lookup`; disteval gives one to each rank.
        own_host: The address on which this rank may listen; ``host`` on a single host.
        key: A secret of 32 bytes that the ranks of this group share, new for each group. The
            templates' frames carry a MAC under it. It is empty where the ranks are threads of one
            process, which no other process can come between.
    """

    directory: Path | None
    host: str = "127.0.0.1"
    port: int = 0
    timeout: float = 60.0
    exchange: Exchange | None = None
    own_host: str = "127.0.0.1"
    key: bytes = field(default=b"", repr=False)

    @property
    def path(self) -> Path:
        """A private directory, empty at the start, on a file system that all ranks share.

        Raises:
            UsageError: The ranks are on several hosts and share no directory.
        """
        if self.directory is None:
            raise UsageError(
                "the ranks are on several hosts and share no directory; let them meet at `host` "
                "and `port`, or by `publish` and `lookup`"
            )
        return self.directory

    def publish(self, key: str, value: str | bytes) -> None:
        """Give a value, such as an address that this rank has bound, to all ranks that ask for it.

        Raises:
            UsageError: A value is no text or bytes, or this rendezvous has no exchange.
        """
        self._store().publish(key, value)

    def lookup(self, key: str) -> str | bytes:
        """Return the value of a key as soon as a rank has published it.

        Raises:
            TimeoutError: No rank published the key within `timeout` seconds.
            UsageError: This rendezvous has no exchange.
        """
        return self._store().lookup(key, self.timeout)

    def _store(self) -> Exchange:
        if self.exchange is None:
            raise UsageError(
                "this Rendezvous has no exchange; ranks that disteval starts get one, others can "
                "meet in `path` or at `host` and `port`"
            )
        return self.exchange


class BaseDistBackend(ABC):
    """A communication library as the harness sees it: who this rank is, and two collectives.

    Attributes:
        launcher: The way in which the ranks of this backend are started: ``local``, ``mpirun``,
            ``torchrun``, ``horovodrun``, ``threads``, ``ray``, or one that was registered.
        capabilities: The abilities beyond the contract.
        library: The name under which pip knows the library; empty when there is no library.
        devices: The devices that objects travel on: ``cpu``, ``cuda``, or both.
        preload: The modules of the library that a process may import before ranks are forked off
            it. Importing them must start no thread and open no connection.
    """

    launcher: ClassVar[str] = "local"
    library: ClassVar[str] = ""
    devices: ClassVar[str] = "cpu"
    preload: ClassVar[tuple[str, ...]] = ()
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
            RankError: On every rank, when one rank's object cannot be serialised.
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
            RankError: On every rank, when the object cannot be serialised.
        """

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the group. The default does nothing: the launcher or the library has joined it."""

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group. The default does nothing."""
