"""A process that is started or forked as a rank: it imports what its leader does, and serves."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from disteval.launched import launched_job
from disteval.world.channel.link import Address
from disteval.world.control_directory import rank_file
from disteval.world.postmortem import exit_text
from disteval.world.rank import serve
from disteval.world.supervisor import killed_with_parent, name_process
from disteval.world.supervisor import serve as serve_leader

IMPORTED = "disteval.evaluation"
"""What every rank has imported, forked or started, because most of their functions call it."""

_LOOK_SECONDS = 0.25
_STATUS_SECONDS = 1.0
_POLL_SECONDS = 0.02
_FLUSH_SECONDS = 5.0  # less than a leader waits for ranks that it has dismissed
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def import_path() -> str:
    """Return the folder that holds this library, then the folders that this process imports from.

    Each is a line, for `import_code`.
    """
    path = [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]
    return "\n".join([str(Path(__file__).parents[2]), *path])


def import_code(lines: str, what: str) -> str:
    """Return code that begins a Python process which imports from where this one does.

    Args:
        lines: An expression whose value is that of `import_path` here.
        what: What is imported first, from this library also where a file of the user's, such as
            ``disteval.py`` in the working directory, has the library's name.
    """
    return (
        f"import sys; own, *path = {lines}.splitlines(); "
        f"sys.path[:] = [own, *path]; from {what}; sys.path[:] = path; "
    )


def _redirect_output(path: Path) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if isinstance(sys.stdout, io.TextIOWrapper):  # what Ray puts there does not buffer
        sys.stdout.reconfigure(line_buffering=True)


def become_rank(
    directory: Path,
    rank: int,
    on_lost: Callable[[], None] = lambda: None,
    place: Address | None = None,
) -> int:
    """Serve as one rank of a world until the leader dismisses it; return the exit status.

    Args:
        directory: The control directory of the world.
        rank: The number of the rank.
        on_lost: Called before the process ends because its leader is gone.
        place: See `serve`.
    """
    _redirect_output(rank_file(directory, rank, "out"))
    name_process(f"rank {rank}")
    importlib.import_module(IMPORTED)
    faulthandler.enable()
    return serve(directory, rank, on_lost=on_lost, place=place)


def go_on_in_child(directory: Path, rank: int, at_end: Callable[[], None] = lambda: None) -> None:
    """Return in a child of this process, which ends with status 0 when the child has ended.

    A launcher that ends all ranks when a process of it was killed, as ``torchrun`` and MPICH's
    ``mpirun`` do whatever their options, does not see then that a rank was lost. ``at_end`` is
    called at the end of this process, after the child's.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        killed_with_parent()
        threading.Thread(target=_end_with, args=[parent], daemon=True).start()
        return

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # its number may be that of another process soon
    with contextlib.suppress(OSError):  # the leader has removed the directory
        draft = rank_file(directory, rank, "ended.part")
        draft.write_text(str(os.waitstatus_to_exitcode(status)))
        draft.rename(rank_file(directory, rank, "ended"))
    at_end()
    os._exit(0)


def how_child_ended(directory: Path, rank: int, seconds: float = _STATUS_SECONDS) -> str:
    """Return how a rank ended that called `go_on_in_child`; wait so long for its parent to know.

    An empty text says that it is not known.
    """
    found, deadline = rank_file(directory, rank, "ended"), time.monotonic() + seconds
    while not found.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return exit_text(int(found.read_text())) if found.exists() else ""


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def main() -> int:
    """Serve as one rank of a world; the arguments are its control directory and the rank.

    Where a launcher sets the rank in the environment it is left out.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how children end
    folder, *words = sys.argv[1:]
    # Under mpirun every rank has the same command, and its number is in the environment.
    job = None if words else launched_job()
    return become_rank(Path(folder), int(words[0]) if job is None else job.rank)


def serve_and_become(descriptor: int, leader: int, libraries: Sequence[str]) -> NoReturn:
    """Fork ranks for a leader; each is as if its process had just been started.

    Args:
        descriptor: As for `disteval.world.supervisor.serve`.
        leader: As there.
        libraries: As there.
    """
    forked = serve_leader(descriptor, leader, libraries)
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(forked.variables)
        sys.path[:] = forked.path
        importlib.invalidate_caches()  # what is in those folders now may not have been there
        sys.argv[1:] = [forked.folder, str(forked.rank)]
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        multiprocessing.current_process().authkey = os.urandom(32)
        gc.enable()
        status = become_rank(Path(forked.folder), forked.rank)
    except SystemExit as end:
        status = _exit_status(end)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _end(status)


def _exit_status(end: SystemExit) -> int:
    """Return the exit status that Python gives a process for an exception, and print its text."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _end(status: int) -> NoReturn:
    """End this process as Python does, without freeing what the server imported: that is costly."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush_files()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries print without Python
    finally:
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            signal.raise_signal(-status)
        os._exit(status)


def _flush_files() -> None:
    """Flush the files of this rank; one in which a thread waits to write holds up no other."""

    def flush(file: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            file.flush()

    # Of this rank alone, since the server's are frozen. isinstance would ask proxies, which may
    # import.
    files = [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]
    threads = [threading.Thread(target=flush, args=[file], daemon=True) for file in files]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _FLUSH_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
