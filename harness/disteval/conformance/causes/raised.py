"""Causes that exceptions, stacks and the ends of processes tell, whatever the rule."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from pathlib import Path

from disteval.conformance.seen import Seen
from disteval.errors import HarnessError
from disteval.report.model import evidence

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
_FRAME = re.compile(r'File "(.+)", line (\d+),? in (\S+)')
_RAISED = re.compile(r"^(?:.*(?:raised|ranks?): )?[A-Za-z_][\w.]*: .*$", re.MULTILINE)
_KIND = re.compile(r"(?:raised|failed on [\w ,]+:) ([A-Za-z_][\w.]*)")
_SENDING = re.compile(
    r"(?:^|\.)_?(send|sendall|send_bytes|sendmsg|write|put)(?:$|\()", re.IGNORECASE
)


def by_words(seen: Seen) -> str:
    """Recognise errors of the operating system and of libraries, and signals."""
    ended = re.search(r"^(rank \d+) was lost \(killed by (SIG\w+)", seen.report)
    said = [f"{type(error).__name__}: {error}" for error in seen.errors.values()]
    summary, parts = evidence(seen.report)
    said += _RAISED.findall(summary)
    for title, text in parts:
        if title.startswith("traceback") or ended:
            said += text.splitlines() if "output" in title else _RAISED.findall(text)
    for pattern, cause in _BY_WORDS.items():
        if any(re.search(pattern, line, re.IGNORECASE) for line in said):
            return cause
    if ended is None:
        return ""
    rank, signal = ended.groups()
    return _KILLED.format(rank) if signal == "SIGKILL" else _CRASHED.format(rank, signal)


def at_one_place(seen: Seen) -> str:
    """Recognise an exception, or a wait of all ranks, at one line of the backend."""
    summary, parts = evidence(seen.report)
    if _all_send(seen, parts):
        return SENDS
    texts = [text for title, text in parts if title.startswith("traceback")]
    places = {_place(_frames(text), seen.files) for text in texts}
    kinds = {type(error).__name__ for error in seen.errors.values()}
    if not kinds:  # exceptions that can't be pickled
        kinds = {name.rpartition(".")[2] for name in _KIND.findall(summary)}
    # An error of disteval says itself what to do, and may come of what another rank does.
    own = any(isinstance(error, HarnessError) for error in seen.errors.values())
    if len(places) == len(kinds) == 1 and all(places) and not own:
        return _AT.format(*kinds, *places.pop())
    stacks = [_frames(text)[::-1] for title, text in parts if title.startswith("stack")]
    places = {_place(frames, seen.files) for frames in stacks}
    everybody = sum(_how_many(title) for title, _ in parts if title.startswith("stack"))
    alone = seen.world_size == 1 or everybody < seen.world_size
    if alone or texts or len(places) != 1 or not all(places):
        return ""
    return _WAITS.format(*places.pop())


def _all_send(seen: Seen, parts: Sequence[tuple[str, str]]) -> bool:
    """Return whether every rank waits in a call that sends, or gave up one after its timeout."""
    calls = [part for part in parts if part[0].startswith(("traceback", "stack"))]
    everybody = sum(_how_many(title) for title, _ in calls) >= seen.world_size > 1
    late = all(isinstance(error, TimeoutError) for error in seen.errors.values())
    return everybody and late and all(_sends(title, text, seen.files) for title, text in calls)


def _sends(title: str, text: str, files: Sequence[str]) -> bool:
    """Return whether the innermost calls of a rank send something, for the backend."""
    frames = _frames(text)[:: -1 if title.startswith("stack") else 1]
    if not _place(frames, files):
        return False
    file, line, _ = frames[-1]  # it may call a function of C, which has no frame
    said = [*(name for *_, name in frames[-3:]), linecache.getline(file, int(line)).strip()]
    return any(map(_SENDING.search, said))


def _how_many(title: str) -> int:
    """Return of how many ranks a section of a report is."""
    found = re.findall(r"\d+", title)
    return int(found[0]) if " all " in title else len(found)


def _frames(text: str) -> list[tuple[str, str, str]]:
    """Return the file, line and function of each call in a traceback or in the main thread."""
    threads = text.split("\n\n")
    thread = next((one for one in threads if one.startswith("main thread")), threads[0])
    return [found.groups() for found in _FRAME.finditer(thread)]  # type: ignore[misc]


def _place(frames: Sequence[tuple[str, str, str]], files: Sequence[str]) -> tuple[str, ...]:
    """Return the function, file and line of the innermost call in the backend's files."""
    own = [frame for frame in frames if frame[0] in files]
    if not own:
        return ()
    file, line, function = own[-1]
    return function, Path(file).name, line
