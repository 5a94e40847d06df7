"""How the ranks of one job find their leader and its key, on one host or on several.

On one host they meet in a directory whose name is made of the job's id. On several hosts, in this
order: where the user says (``DISTEVAL_LEADER`` and ``DISTEVAL_KEY_FILE``), in a folder that the
hosts share (``DISTEVAL_CONTROL_DIR``), or by a message of MPI itself. No other store of a launcher
is trusted with a key, since any process may read torchrun's.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from disteval.errors import UsageError, WorldError
from disteval.world.address import own_address
from disteval.world.channel.connection import read_address, write_address
from disteval.world.control_directory import ControlDirectory, create, sweep
from disteval.world.environment import OuterWorld
from disteval.world.given_leader import (
    given_address,
    given_here,
    given_leader,
    has_given_leader,
)
from disteval.world.launchers.base import LOOPBACK, Hosts

_MESSAGE_BYTES = 4096
_REFUSE_SECONDS = 10.0
_POLL_SECONDS = 0.01

_WAYS_WITHOUT_MPI = (
    "Set DISTEVAL_LEADER to host:port of rank 0's host, and DISTEVAL_KEY_FILE to a file of mode "
    "0600 with the same random text on every host (openssl rand -hex 32); or let all hosts see one "
    "folder that only you can enter, and name it in DISTEVAL_CONTROL_DIR, unless they are ranks of "
    "MPICH's mpirun, which gives its job no id"
)
_WAYS = _WAYS_WITHOUT_MPI + "; or start the ranks with mpirun, and install mpi4py"


class Meeting(ABC):
    """The way in which the ranks of a job find their leader.

    Args:
        outer: The worker group that a launcher put this process in.
        interface: The interface on which the leader listens, as for `own_address`.
    """

    def __init__(self, outer: OuterWorld, interface: str | None = None) -> None:
        self.outer = outer
        self.interface = interface

    def accept_losses(self) -> None:
        """Check that the job can end when a rank was lost.

        Raises:
            UsageError: It can't.
        """

    def directory(self) -> ControlDirectory:
        """Create the leader's control directory."""
        return create(local=True)

    def hosts(self) -> Hosts:
        """Return where the leader listens; the ranks' own addresses are known when they come."""
        own = own_address(self.interface)
        return Hosts(own, [own] * self.outer.world_size, shared=False)

    def announce(self, directory: Path, seconds: float) -> None:
        """Send the other ranks what the leader has written to its directory, where that must be."""

    def own_directory(self) -> ControlDirectory | None:
        """Create a directory for a rank other than 0; None if it uses the leader's."""
        sweep(local=True)
        return create(local=True)

    @abstractmethod
    def find(self, own: Path, seconds: float) -> Path:
        """Return where a rank other than 0 finds the leader's address and key, now or later."""


class SharedFolder(Meeting):
    """All hosts see the folder ``DISTEVAL_CONTROL_DIR``, and meet in a directory there."""

    def directory(self) -> ControlDirectory:
        """See `Meeting.directory`; its name is that of the job."""
        return create(self.outer.control_directory().name)

    def find(self, own: Path, seconds: float) -> Path:
        """See `Meeting.find`."""
        return self.outer.control_directory()


class OneHost(SharedFolder):
    """All ranks are on one host, and use the leader's directory there."""

    def hosts(self) -> Hosts:
        """See `Meeting.hosts`."""
        return Hosts(LOOPBACK, [LOOPBACK] * self.outer.world_size)

    def own_directory(self) -> ControlDirectory | None:
        """See `Meeting.own_directory`."""
        return None


class GivenLeader(Meeting):
    """The user says where the leader listens, and has given all hosts a key."""

    def hosts(self) -> Hosts:
        """See `Meeting.hosts`."""
        host, port, key = given_here(self.outer.purpose())
        if self.interface is not None and own_address(self.interface) != host:
            raise UsageError(
                f"--interface {self.interface} and DISTEVAL_LEADER={os.environ['DISTEVAL_LEADER']} "
                f"are different addresses; leave one of them out"
            )
        return Hosts(host, [host] * self.outer.world_size, shared=False, port=port, key=key)

    def find(self, own: Path, seconds: float) -> Path:
        """See `Meeting.find`."""
        write_address(own, given_address(self.outer.purpose()))
        return own


class OverMPI(Meeting):
    """The leader sends its address and key to the other ranks once, over MPI."""

    def accept_losses(self) -> None:
        """See `Meeting.accept_losses`; MPI ends no rank until all have ended."""
        raise UsageError(
            f"{self.outer}. They are on several hosts, and would meet over MPI, which waits at the "
            f"end for ranks that were lost; an elastic evaluation must not. {_WAYS_WITHOUT_MPI}"
        )

    def hosts(self) -> Hosts:
        """See `Meeting.hosts`; if the leader can't listen, the other ranks are told."""
        try:
            return super().hosts()
        except UsageError as error:
            # MPI ends no rank until all have ended, so they must not wait.
            self._send({"refused": str(error)[: _MESSAGE_BYTES // 2]}, _REFUSE_SECONDS)
            raise

    def announce(self, directory: Path, seconds: float) -> None:
        """See `Meeting.announce`."""
        late = self._send(json.loads(read_address(directory)), seconds)
        if late:
            raise WorldError(
                f"MPI did not bring the leader's address to the ranks {late} within {seconds:.0f} s"
                f"; see whether they have started, and whether a firewall lets MPI through"
            )

    def find(self, own: Path, seconds: float) -> Path:
        """See `Meeting.find`."""
        mpi, comm = self._join()
        message = bytearray(_MESSAGE_BYTES)
        if not all(_wait([comm.Irecv([message, mpi.BYTE], 0)], seconds)):
            raise WorldError(
                f"rank {self.outer.rank} received no address of its leader from rank 0 over MPI "
                f"within {seconds:.0f} s; see whether rank 0 has started the same command"
            )
        found = json.loads(message.decode())
        if "refused" in found:
            raise UsageError(f"rank 0 can't lead: {found['refused']}")
        write_address(own, json.dumps(found))
        return own

    def _send(self, what: dict[str, Any], seconds: float) -> list[int]:
        """Send every other rank a message, and return those that have not received it in time."""
        mpi, comm = self._join()
        message = json.dumps(what).encode().ljust(_MESSAGE_BYTES)
        others = range(1, self.outer.world_size)
        sent = _wait([comm.Isend([message, mpi.BYTE], rank) for rank in others], seconds)
        return [rank for rank, done in zip(others, sent, strict=True) if not done]

    def _join(self) -> tuple[Any, Any]:
        """Join MPI's group, and return the module and its communicator."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UsageError(f"mpi4py can't be imported ({error}). {_WAYS}") from error
        comm = MPI.COMM_WORLD
        found, told = (comm.rank, comm.size), (self.outer.rank, self.outer.world_size)
        if found != told:
            raise UsageError(
                f"mpi4py says that this is rank {found[0]} of {found[1]}, and "
                f"{self.outer.launcher} that it is rank {told[0]} of {told[1]}: mpi4py uses "
                f"another MPI than the launcher. Use the mpirun of mpi4py's MPI. {_WAYS}"
            )
        return MPI, comm


def choose_meeting(outer: OuterWorld, interface: str | None = None) -> Meeting:
    """Return how the ranks of a job find their leader.

    Every rank chooses by what all of them know: the launcher's variables and the user's.

    Raises:
        UsageError: The ranks are on several hosts, and there is no way.
    """
    if has_given_leader():
        given_leader(outer.purpose())
        return GivenLeader(outer, interface)
    if outer.ranks_on_host == outer.world_size:
        return OneHost(outer, interface)
    if os.environ.get("DISTEVAL_CONTROL_DIR") and outer.job_id():
        return SharedFolder(outer, interface)
    if outer.launcher == "mpirun" and find_spec("mpi4py") is not None:
        return OverMPI(outer, interface)
    raise UsageError(
        f"{outer}. They are on several hosts, at most {outer.ranks_on_host} of them on this one, "
        f"and have no private way to find their leader. {_WAYS}"
    )


def _wait(requests: list[Any], seconds: float) -> list[bool]:
    """Wait until MPI has carried every message, at most so long; return which it has carried."""
    deadline = time.monotonic() + seconds
    done = [False] * len(requests)
    while not all(done) and time.monotonic() < deadline:
        done = [before or bool(one.Test()) for before, one in zip(done, requests, strict=True)]
        time.sleep(_POLL_SECONDS)
    return done
