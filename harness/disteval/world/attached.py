"""Worker groups that somebody else has started, with ``mpirun``, ``torchrun``, ``srun`` or such.

Rank 0 leads and takes part (`disteval.world.World.lead`); the other ranks follow it until it
dismisses them. On one host they meet in a directory whose name is made of the job's id. On several
hosts, in this order: where the user says (``DISTEVAL_LEADER`` and ``DISTEVAL_KEY_FILE``), in a
folder that the hosts share (``DISTEVAL_CONTROL_DIR``), or by a message of MPI itself. No other
store of a launcher is trusted with a key, since any process may read torchrun's.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WorldError
from disteval.files import whose, write_atomically
from disteval.host import exit_now, thread_variables
from disteval.launched import LAUNCHERS, LaunchedJob, launched_job
from disteval.world.address import is_own, own_address, resolve
from disteval.world.channel.link import Address, read_address
from disteval.world.control_directory import folder, rank_file
from disteval.world.launchers import ThreadsLauncher
from disteval.world.postmortem import exit_text
from disteval.world.processes import own_directory
from disteval.world.rank import serve
from disteval.world.supervisor import killed_with_parent

if TYPE_CHECKING:
    from disteval.world.world import World

START_SECONDS = 60.0
"""Seconds that ranks get at least to start and to join; imports alone can take many."""

STOPPED_SECONDS = 60.0
"""How long ranks wait for a rank 0 that a signal has stopped; its launcher would wait for ever."""

_KEY_CHARACTERS = 32
_MESSAGE_BYTES = 4096
_REFUSE_SECONDS = 10.0
_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.25

_SRUN = (
    "Start them with srun in a shell where SLURM_STEP_NUM_TASKS is not removed, or one task that "
    "starts the ranks itself, with srun -n 1 and --world-size {0}."
)
_ANOTHER = (
    "Start them with mpirun -np {0} or torchrun --no-python --nproc-per-node {0}, or one process "
    "that starts the ranks itself, with --world-size {0}."
)
_WAYS_WITHOUT_MPI = (
    "Set DISTEVAL_LEADER to host:port of rank 0's host, and DISTEVAL_KEY_FILE to a file of mode "
    "0600 with the same random text on every host (openssl rand -hex 32); or let all hosts see one "
    "folder that only you can enter, and name it in DISTEVAL_CONTROL_DIR, unless they are ranks of "
    "MPICH's mpirun, which gives its job no id"
)
_WAYS = _WAYS_WITHOUT_MPI + "; or start the ranks with mpirun, and install mpi4py"


def detect_outer_world(environ: Mapping[str, str] = os.environ) -> LaunchedJob | None:
    """Return the worker group that a launcher's variables describe; None without a launcher.

    This decides who leads, and nothing else: the backend says whether it has joined a group.

    Raises:
        UsageError: The variables are wrong, or the launcher's ranks can't be led.
    """
    job = launched_job(environ)
    if job is None or (job.world_size == 1 and not LAUNCHERS[job.launcher].leads_one):
        return None
    # Task 0 of such a step can't be told from a batch script, and would not lead.
    is_step = job.launcher != "srun" or "SLURM_STEP_NUM_TASKS" in environ
    if not LAUNCHERS[job.launcher].job or not is_step:
        remedy = (_SRUN if job.launcher == "srun" else _ANOTHER).format(job.world_size)
        raise UsageError(f"{job}. disteval can't join them, and each would do all work. {remedy}")
    return job


def meeting_place(job: LaunchedJob) -> Path:
    """Return the control directory in which the ranks of a job that share it find their leader.

    Anybody can compute its name, and nobody else can create it.
    """
    digest = hashlib.sha256(f"{job.launcher} {job.id() or _parent()}".encode()).hexdigest()[:16]
    return folder() / f"job-{digest}"


class LeaderSearch:
    """The way in which the ranks of a job find their leader.

    Every rank chooses by what all of them know: the launcher's variables and the user's.

    Args:
        job: The worker group that a launcher put this process in.
        interface: The interface on which the leader listens, as for `own_address`.

    Raises:
        UsageError: The ranks are on several hosts, and there is no way; or the variables by which
            the user names the leader are wrong.
    """

    def __init__(self, job: LaunchedJob, interface: str | None = None) -> None:
        self._job, self._interface = job, interface
        self._named: Address | None = None
        self.way: Literal["one host", "a name", "a folder", "MPI"]
        if has_named_leader():
            self.way, self._named = "a name", named_leader(job.purpose())
        elif job.ranks_on_host == job.world_size:
            self.way = "one host"
        elif os.environ.get("DISTEVAL_CONTROL_DIR") and job.id():
            self.way = "a folder"
        elif job.launcher == "mpirun" and find_spec("mpi4py") is not None:
            self.way = "MPI"
        else:
            raise UsageError(
                f"{job}. They are on several hosts, at most {job.ranks_on_host} of them on "
                f"this one, and have no private way to find their leader. {_WAYS}"
            )

    @property
    def folder(self) -> Path | None:
        """The leader's control directory, where the other ranks look for it in that."""
        return meeting_place(self._job) if self.way in ("one host", "a folder") else None

    def accept_losses(self) -> None:
        """Check that the job can end when a rank was lost.

        Raises:
            UsageError: It can't: MPI ends no rank until all have ended.
        """
        if self.way == "MPI":
            raise UsageError(
                f"{self._job}. They are on several hosts, and would meet over MPI, which waits "
                f"at the end for ranks that were lost; an elastic evaluation must not. "
                f"{_WAYS_WITHOUT_MPI}"
            )

    def own_address(self) -> Address | None:
        """Return where the leader is to listen; None where all ranks see its control directory.

        Raises:
            UsageError: It can't listen where the user says, or has no address to choose. Ranks that
                wait for a message of MPI are told so.
        """
        if self.way == "one host":
            return None
        if (named := self._named) is not None:
            check_here(named)
            if self._interface is not None and own_address(self._interface) != named.host:
                raise UsageError(
                    f"--interface {self._interface} and DISTEVAL_LEADER="
                    f"{os.environ['DISTEVAL_LEADER']} are different addresses; leave one out"
                )
            return named
        try:
            return Address(own_address(self._interface))
        except UsageError as error:
            if self.way == "MPI":  # it ends no rank until all have ended, so they must not wait
                self._broadcast(f"!{error}"[: _MESSAGE_BYTES // 2], _REFUSE_SECONDS)
            raise

    def announce(self, address: Address, seconds: float) -> None:
        """Send the other ranks the leader's address, where it is MPI that brings it.

        Raises:
            WorldError: It did not within so many seconds.
        """
        if self.way == "MPI":
            self._broadcast(replace(address, folder="").dump(), seconds)

    def find(self, seconds: float) -> Path | Address:
        """Return the leader's address, or where it will be; called on the ranks other than 0.

        Raises:
            UsageError: The leader has none.
            WorldError: MPI did not bring it within so many seconds.
        """
        if found := self._named or self.folder:
            return found
        text = self._broadcast("", seconds)
        if text.startswith("!"):
            raise UsageError(f"rank 0 can't lead: {text[1:]}")
        return Address.load(text)

    def _broadcast(self, text: str, seconds: float) -> str:
        """Have MPI carry a text of rank 0 to all ranks, and return it.

        Raises:
            UsageError: MPI is missing, or another one than the launcher's.
            WorldError: It did not within so many seconds.
        """
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UsageError(f"mpi4py can't be imported ({error}). {_WAYS}") from error
        comm = MPI.COMM_WORLD
        found, told = (comm.rank, comm.size), (self._job.rank, self._job.world_size)
        if found != told:
            raise UsageError(
                f"mpi4py says that this is rank {found[0]} of {found[1]}, and "
                f"{self._job.launcher} that it is rank {told[0]} of {told[1]}: mpi4py uses "
                f"another MPI than the launcher. Use the mpirun of mpi4py's MPI. {_WAYS}"
            )
        message = bytearray(text.encode().ljust(_MESSAGE_BYTES))
        carried, deadline = comm.Ibcast([message, MPI.BYTE], 0), time.monotonic() + seconds
        while not carried.Test():
            if time.monotonic() > deadline:
                raise WorldError(
                    f"MPI did not bring the address of rank 0, which leads, to all ranks within "
                    f"{seconds:.0f} s; see whether each has started the same command, and whether "
                    f"a firewall lets MPI through"
                )
            time.sleep(_POLL_SECONDS)
        return message.decode().rstrip()


class OuterLauncher(ThreadsLauncher):
    """Starts no process: this process leads, and a thread of it is rank 0.

    Args:
        job: As for `LeaderSearch`.
        interface: As for `LeaderSearch`.
    """

    name = "outer"
    attached: ClassVar[bool] = True

    def __init__(self, job: LaunchedJob, interface: str | None = None) -> None:
        super().__init__()
        self._bootstrap = LeaderSearch(job, interface)
        self.folder = self._bootstrap.folder

    def prepare(self, world_size: int) -> Address | None:
        """Return where the ranks meet."""
        if self.elastic:
            self._bootstrap.accept_losses()
        return self._bootstrap.own_address()

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start the thread of rank 0; the other ranks connect when they know where."""
        self._directory = directory
        self._bootstrap.announce(read_address(directory), START_SECONDS + world_size)
        return super().start(directory, 1, threads)

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """See `Launcher.how_ended`; the parents of elastic ranks write it, see `go_on_in_child`."""
        if rank == 0:
            return super().how_ended(rank, seconds)
        found, deadline = rank_file(self._directory, rank, "ended"), time.monotonic() + seconds
        while self.elastic and not found.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return exit_text(int(found.read_text())) if found.exists() else ""


def follow(job: LaunchedJob, *, elastic: bool = False) -> int:
    """Serve as a rank of the worker group that rank 0 leads, until it dismisses this process.

    Args:
        job: The worker group.
        elastic: Whether rank 0's world goes on when ranks are lost. This rank is then a child of
            this process, so that the launcher does not end the others when it is lost.

    Returns:
        The exit status with which the leader wants this process to end.

    Raises:
        UsageError: The ranks are on several hosts, and have no way to find each other.
        WorldError: Rank 0 did not appear in time.
    """
    bootstrap = LeaderSearch(job)
    if elastic:
        bootstrap.accept_losses()
    # On several hosts this one has not the leader's directory, or sees it over a network.
    is_shared = bootstrap.way == "one host"
    with nullcontext(meeting_place(job)) if is_shared else own_directory() as directory:
        if elastic:
            go_on_in_child(directory, job.rank)
        place = bootstrap.find(START_SECONDS + job.world_size)
        return serve(
            directory, job.rank, patience=START_SECONDS, place=place, stopped=STOPPED_SECONDS
        )


def go_on_in_child(directory: Path, rank: int) -> None:
    """Return in a child of this process, which ends with status 0 when the child has ended.

    A launcher that ends all ranks when a process of it was killed, as ``torchrun`` and MPICH's
    ``mpirun`` do whatever their options, does not see then that a rank was lost.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        killed_with_parent()
        threading.Thread(target=_end_with, args=[parent], daemon=True).start()
        return

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # its number may be that of another process soon
    with suppress(OSError):  # the leader has removed the directory
        code = str(os.waitstatus_to_exitcode(status)).encode()
        write_atomically(rank_file(directory, rank, "ended"), lambda file: file.write(code))
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def release(world: World, exit_code: int) -> None:
    """Dismiss the ranks that `World.lead` leads; if they are lost, end this process now."""
    if world.is_open:
        world.close(exit_code)
    else:
        exit_now(exit_code)


def share_cores(job: LaunchedJob, threads: int | None = None) -> None:
    """Give this process that many computing threads; None stands for its share of the host's cores.

    Call it before a framework is imported.
    """
    os.environ.update(thread_variables(job.ranks_on_host, threads))


def why_not_in(job: LaunchedJob, name: str, backend: type[BaseDistBackend]) -> str:
    """Return why a backend can't run in this worker group; an empty text when it can.

    Its ranks must be processes that its own launcher started, or any processes at all.
    """
    if backend.launcher in ("local", job.launcher):
        return ""
    return f"{name}'s ranks are started by {backend.launcher!r}, and this job's by {job.launcher}"


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


@functools.cache  # a rank in a child of its process has the same
def _parent() -> str:
    # MPICH's ranks of one host are children of one proxy; its start time distinguishes it from a
    # later process with the same number.
    parent = os.getppid()
    try:
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:  # there is no /proc, as on macOS
        return str(parent)
    return f"{parent}:{stat.rpartition(')')[2].split()[19]}"
