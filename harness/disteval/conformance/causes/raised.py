"""Causes that exceptions, stacks and the ends of processes tell, whatever the rule."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from pathlib import Path

from disteval.conformance.seen import Seen
from disteval.errors import HarnessError
from disteval.world.channel.messages import Frame

ADDRESS_IN_USE = (
    "the backend listens on a fixed port, which another process has; let rank 0 listen on "
    "rendezvous.port, or on port 0 and publish the port that it got"
)
_BY_WORDS = {
    r"address already in use|EADDRINUSE": ADDRESS_IN_USE,
    r"connection refused|ECONNREFUSED": (
        "ranks connect where nobody listens, for example before rank 0 does; publish the address "
        "once rank 0 listens, and look it up before you connect"
    ),
    r"name or service not known|name resolution|gaierror|nodename nor servname": (
        "the name of the host has no address here; use rendezvous.host and rendezvous.own_host, "
        "which are addresses"
    ),
    r"no route to host|network is unreachable": (
        "the address can't be reached from this rank, because of a firewall or of a name that "
        "stands for another network; use rendezvous.host, which the ranks can reach"
    ),
    r"too many open files|EMFILE": (
        "files or sockets are opened and not closed; close them after each call, or keep one open "
        "for all calls"
    ),
    r"no space left on device|ENOSPC": (
        "a file system is full, often /dev/shm; free space there, and remove the backend's files "
        "as ranks leave"
    ),
    r"MemoryError|cannot allocate memory|bad_alloc|out of memory": (
        "the memory of this machine does not suffice; check fewer ranks, and copy large payloads "
        "fewer times"
    ),
    r"struct\.error: .*(requires|out of range)|OverflowError|int too (large|big) to convert": (
        "a length does not fit into its field; send lengths in 64 bits"
    ),
    r"is not JSON serializable|can ?not serialize .* object|can't serialize": (
        "objects travel in a format that knows fewer types than Python, as JSON and MessagePack "
        "do; pickle them, by protocol 5"
    ),
    r"Can't get attribute '[^']*' on <module '__main__'": (
        "ranks can't import a class that was defined in the main program; define it in a module, "
        "or pickle with cloudpickle"
    ),
    r"ModuleNotFoundError: No module named": (
        "the ranks can't import a module; install it where they run, or start the command in the "
        "directory that has it"
    ),
}
_KILLED = (
    "{} was killed by SIGKILL, as the kernel does when memory runs out; read the kernel's log, and "
    "check fewer ranks or examples"
)
_CRASHED = (
    "{} crashed in native code ({}); a buffer that is too short, or a call from two threads, does "
    "that to many libraries"
)
SENDS = (
    "each rank sends before any receives, and the buffers of the connections are full; send in a "
    "thread of its own, or let every second rank receive first"
)
_AT = "the backend raises {} in {} ({}, line {}); its traceback says how it came there"
_WAITS = (
    "all ranks wait in {} ({}, line {}), so that none sends what the others wait for; let each "
    "rank send before it waits, and give every wait a timeout"
)
_SENDING = re.compile(
    r"(?:^|\.)_?(send|sendall|send_bytes|sendmsg|write|put)(?:$|\()", re.IGNORECASE
)


def by_words(seen: Seen) -> str:
    """Recognise errors of the operating system and of libraries, and signals."""
    lost = seen.lost
    said = [f"{type(error).__name__}: {error}" for error in seen.errors.values()]
    for status in seen.ranks:
        trace = status.reply.trace if status.reply else ""
        # An exception, also one behind another, begins a line of a traceback.
        said += [line for line in trace.splitlines() if not line[:1].isspace()]
        said += status.output.splitlines() if lost and lost.signal else []
    for pattern, cause in _BY_WORDS.items():
        if any(re.search(pattern, line, re.IGNORECASE) for line in said):
            return cause
    if lost is None or not lost.signal:
        return ""
    rank = f"rank {lost.rank}"
    return _KILLED.format(rank) if lost.signal == "SIGKILL" else _CRASHED.format(rank, lost.signal)


def at_one_place(seen: Seen) -> str:
    """Recognise an exception, or a wait of all ranks, at one line of the backend."""
    if _all_send(seen):
        return SENDS
    raised = [status for status in seen.ranks if status.raised]
    places = {_place(status.frames, seen.files) for status in raised}
    kinds = {status.raised.partition(":")[0].rpartition(".")[2].strip() for status in raised}
    # An error of disteval says itself what to do, and may come of what another rank does.
    own = any(isinstance(error, HarnessError) for error in seen.errors.values())
    if len(places) == len(kinds) == 1 and all(places) and not own:
        return _AT.format(*kinds, *places.pop())
    waiting = [status for status in seen.ranks if status.stack and not status.reply]
    places = {_place(status.frames, seen.files) for status in waiting}
    alone = seen.world_size == 1 or len(waiting) < seen.world_size
    if alone or raised or len(places) != 1 or not all(places):
        return ""
    return _WAITS.format(*places.pop())


def _all_send(seen: Seen) -> bool:
    """Return whether every rank waits in a call that sends, or gave up one after its timeout."""
    everybody = len(seen.ranks) == seen.world_size > 1
    late = all(isinstance(error, TimeoutError) for error in seen.errors.values())
    return everybody and late and all(_sends(status.frames, seen.files) for status in seen.ranks)


def _sends(frames: Sequence[Frame], files: Sequence[str]) -> bool:
    """Return whether the innermost calls of a rank send something, for the backend."""
    if not _place(frames, files):
        return False
    inner = frames[0]  # it may call a function of C, which has no frame
    said = [frame.function for frame in frames[:3]]
    said.append(linecache.getline(inner.file, inner.line).strip())
    return any(map(_SENDING.search, said))


def _place(frames: Sequence[Frame], files: Sequence[str]) -> tuple[str, ...]:
    """Return the function, file and line of the innermost call in the backend's files."""
    for frame in frames:
        if frame.file in files:
            return frame.function, Path(frame.file).name, str(frame.line)
    return ()
