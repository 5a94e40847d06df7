"""How the ranks of one job find their leader and its key, on one host or on several.

On one host they meet in a directory whose name is made of the job's id. On several hosts, in this
order: where the user says (``DISTEVAL_LEADER`` and ``DISTEVAL_KEY_FILE``), in a folder that the
hosts share (``DISTEVAL_CONTROL_DIR``), or by a message of MPI itself. No other store of a launcher
is trusted with a key, since any process may read torchrun's.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from disteval.errors import UsageError, WorldError
from disteval.files import whose
from disteval.world.address import LOOPBACK, Hosts, is_own, own_address, resolve
from disteval.world.channel.link import Address
from disteval.world.control_directory import ControlDirectory, create, sweep
from disteval.world.environment import OuterWorld

_KEY_CHARACTERS = 32
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


class Bootstrap:
    """The way in which the ranks of a job find their leader.

    Every rank chooses by what all of them know: the launcher's variables and the user's.

    Args:
        outer: The worker group that a launcher put this process in.
        interface: The interface on which the leader listens, as for `own_address`.

    Raises:
        UsageError: The ranks are on several hosts, and there is no way; or the variables by which
            the user names the leader are wrong.
    """

    def __init__(self, outer: OuterWorld, interface: str | None = None) -> None:
        self._outer, self._interface = outer, interface
        self._on_one_host = self._in_folder = self._over_mpi = False
        self._named: Address | None = None
        if has_named_leader():
            self._named = named_leader(outer.purpose())
        elif outer.ranks_on_host == outer.world_size:
            self._on_one_host = self._in_folder = True
        elif os.environ.get("DISTEVAL_CONTROL_DIR") and outer.job_id():
            self._in_folder = True
        elif outer.launcher == "mpirun" and find_spec("mpi4py") is not None:
            self._over_mpi = True
        else:
            raise UsageError(
                f"{outer}. They are on several hosts, at most {outer.ranks_on_host} of them on "
                f"this one, and have no private way to find their leader. {_WAYS}"
            )

    def accept_losses(self) -> None:
        """Check that the job can end when a rank was lost.

        Raises:
            UsageError: It can't: MPI ends no rank until all have ended.
        """
        if self._over_mpi:
            raise UsageError(
                f"{self._outer}. They are on several hosts, and would meet over MPI, which waits "
                f"at the end for ranks that were lost; an elastic evaluation must not. "
                f"{_WAYS_WITHOUT_MPI}"
            )

    def directory(self) -> ControlDirectory:
        """Create the leader's control directory, under the job's name where other ranks look."""
        name = self._outer.control_directory().name if self._in_folder else ""
        return create(name, local=not self._in_folder)

    def own_directory(self) -> ControlDirectory | None:
        """Create a directory for a rank other than 0; None if it uses the leader's."""
        if self._on_one_host:
            return None
        sweep(local=True)
        return create(local=True)

    def hosts(self) -> Hosts:
        """Return where the leader listens; the ranks' own addresses are known when they come.

        Raises:
            UsageError: It can't listen where the user says, or has no address to choose. Ranks that
                wait for a message of MPI are told so.
        """
        size = self._outer.world_size
        if self._on_one_host:
            return Hosts(LOOPBACK, [LOOPBACK] * size)
        if (named := self._named) is not None:
            assert named.host is not None
            check_here(named)
            if self._interface is not None and own_address(self._interface) != named.host:
                raise UsageError(
                    f"--interface {self._interface} and DISTEVAL_LEADER="
                    f"{os.environ['DISTEVAL_LEADER']} are different addresses; leave one out"
                )
            hosts = [named.host] * size
            return Hosts(named.host, hosts, shared=False, port=named.port, key=named.key)
        try:
            own = own_address(self._interface)
        except UsageError as error:
            if self._over_mpi:  # MPI ends no rank until all have ended, so they must not wait
                self._send(f"!{error}"[: _MESSAGE_BYTES // 2], _REFUSE_SECONDS)
            raise
        return Hosts(own, [own] * size, shared=False)

    def announce(self, address: Address, seconds: float) -> None:
        """Send the other ranks the leader's address, where it is MPI that brings it.

        Raises:
            WorldError: It did not within so many seconds.
        """
        late = self._send(replace(address, folder="").dump(), seconds) if self._over_mpi else []
        if late:
            raise WorldError(
                f"MPI did not bring the leader's address to the ranks {late} within {seconds:.0f} s"
                f"; see whether they have started, and whether a firewall lets MPI through"
            )

    def find(self, seconds: float) -> Path | Address:
        """Return the leader's address, or where it will be; called on the ranks other than 0.

        Raises:
            UsageError: The leader has none.
            WorldError: MPI did not bring it within so many seconds.
        """
        if self._named is not None:
            return self._named
        if self._in_folder:
            return self._outer.control_directory()
        mpi, comm = self._join()
        message = bytearray(_MESSAGE_BYTES)
        if not all(_wait([comm.Irecv([message, mpi.BYTE], 0)], seconds)):
            raise WorldError(
                f"rank {self._outer.rank} received no address of its leader from rank 0 over MPI "
                f"within {seconds:.0f} s; see whether rank 0 has started the same command"
            )
        found = message.decode().rstrip()
        if found.startswith("!"):
            raise UsageError(f"rank 0 can't lead: {found[1:]}")
        return Address.load(found)

    def _send(self, what: str, seconds: float) -> list[int]:
        """Send every other rank a message, and return those that have not received it in time."""
        mpi, comm = self._join()
        message = what.encode().ljust(_MESSAGE_BYTES)
        others = range(1, self._outer.world_size)
        sent = _wait([comm.Isend([message, mpi.BYTE], rank) for rank in others], seconds)
        return [rank for rank, done in zip(others, sent, strict=True) if not done]

    def _join(self) -> tuple[Any, Any]:
        """Join MPI's group, and return the module and its communicator."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UsageError(f"mpi4py can't be imported ({error}). {_WAYS}") from error
        comm = MPI.COMM_WORLD
        found, told = (comm.rank, comm.size), (self._outer.rank, self._outer.world_size)
        if found != told:
            raise UsageError(
                f"mpi4py says that this is rank {found[0]} of {found[1]}, and "
                f"{self._outer.launcher} that it is rank {told[0]} of {told[1]}: mpi4py uses "
                f"another MPI than the launcher. Use the mpirun of mpi4py's MPI. {_WAYS}"
            )
        return MPI, comm


def _wait(requests: list[Any], seconds: float) -> list[bool]:
    """Wait until MPI has carried every message, at most so long; return which it has carried."""
    deadline = time.monotonic() + seconds
    done = [False] * len(requests)
    while not all(done) and time.monotonic() < deadline:
        done = [before or bool(one.Test()) for before, one in zip(done, requests, strict=True)]
        time.sleep(_POLL_SECONDS)
    return done


def has_named_leader() -> bool:
    """Return whether the user has named a leader."""
    return any(os.environ.get(name) for name in ("DISTEVAL_LEADER", "DISTEVAL_KEY_FILE"))


def named_leader(purpose: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Return the address of the leader that the user has named, with its key.

    Args:
        purpose: What the leader leads. Each purpose has a key of its own, so that ranks do not
            take the leader of another job for theirs.
        environ: The user's variables.

    Raises:
        UsageError: A variable is missing or wrong, or others may read the key file.
    """
    leader, key_file = environ.get("DISTEVAL_LEADER", ""), environ.get("DISTEVAL_KEY_FILE", "")
    if not leader or not key_file:
        there, missing = ("DISTEVAL_LEADER", "DISTEVAL_KEY_FILE")[:: 1 if leader else -1]
        raise UsageError(
            f"{there} is set without {missing}; set both on every host, or neither: the leader "
            f"listens at host:port, and the file holds the key that all ranks must know"
        )
    host, _, port = leader.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"DISTEVAL_LEADER is {leader!r:.99}, and must be host:port of rank 0's host, such as "
            f"node1:29400"
        )
    key = hmac.digest(_read_key(Path(key_file)), purpose.encode(), "sha256")
    return Address(resolve(host), int(port), key)


def check_here(named: Address) -> None:
    """Check in the process that is to listen there that a named leader is on this host.

    Raises:
        UsageError: It is on another host.
    """
    assert named.host is not None
    if not is_own(named.host):
        raise UsageError(
            f"DISTEVAL_LEADER={os.environ['DISTEVAL_LEADER']} names {named.host}, which is no "
            f"address of this host, where the leader runs; name one of this host"
        )


def _read_key(path: Path) -> bytes:
    """Return the key that is made of the text in a file of this user."""
    try:
        with path.open("rb") as file:
            if why := whose(os.fstat(file.fileno()), 0o077):
                raise UsageError(
                    f"DISTEVAL_KEY_FILE={path} {why}, and must be a file of user {os.geteuid()} "
                    f"that nobody else can read; make it yours, with mode 0600"
                )
            text = file.read(1 << 16).strip()
    except OSError as error:
        raise UsageError(
            f"DISTEVAL_KEY_FILE={path} can't be read ({error.strerror}); name a file of mode 0600 "
            f"with the same random text on every host"
        ) from None
    if len(text) < _KEY_CHARACTERS:
        raise UsageError(
            f"DISTEVAL_KEY_FILE={path} holds {len(text)} characters, and a key has at least "
            f"{_KEY_CHARACTERS} random ones; write it with openssl rand -hex 32"
        )
    return hashlib.sha256(b"disteval world " + text).digest()
