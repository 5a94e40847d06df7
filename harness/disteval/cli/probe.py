"""Whether a backend works here, found out in a process of its own, which ``disteval doctor`` owns.

A library that is broken may crash, hang, or print what it likes; none of it reaches the doctor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from disteval.cli.backends import support_of
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, LibraryMissingError, WorldError
from disteval.registry import get_backend_class
from disteval.worlds import World
from disteval.worlds.interrupts import interrupted_later

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from disteval.cli.probe import main; main(sys.argv[2], sys.argv[3], sys.argv[4] == 'start')"
)
_BURY_SECONDS = 15.0  # a world that is interrupted buries its ranks in less
_MOST_BYTES = 1 << 16
_OUTPUT_LINES = 10


@dataclass(frozen=True)
class Trial:
    """What came of trying one backend.

    Attributes:
        name: The backend's name.
        works: Whether its ranks exchanged an object, or, where none were to be started, whether it
            can be imported.
        absent: Whether something is not installed that it needs.
        why_not: Why it does not work, and what would make it work.
        library: The distribution that it speaks for.
        version: The installed one.
        launcher: How its ranks are started.
        ranks: How many ranks exchanged an object.
        seconds: How long it took to start them and exchange it.
        output: The end of what was printed, where the process ended before it could tell.
    """

    name: str
    works: bool
    absent: bool = False
    why_not: str = ""
    library: str = ""
    version: str = ""
    launcher: str = ""
    ranks: int = 0
    seconds: float = 0.0
    output: str = ""


def try_backend(name: str, start: bool, seconds: float) -> Trial:
    """Try a backend in a process that is ended after so many seconds.

    Args:
        name: A registered name, or ``module:Class``.
        start: Whether to start ranks; else it is only imported.
        seconds: How long it may take.
    """
    with tempfile.TemporaryDirectory(prefix="disteval-doctor-") as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, "output")
        path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
        todo = "start" if start else "import"
        command = [sys.executable, "-c", _CODE, path, name, str(answer), todo]
        with output.open("wb") as file:
            ended = _run(command, file, seconds)
        if answer.exists():
            return Trial(**json.loads(answer.read_text()))
        printed = output.read_bytes()[-_MOST_BYTES:].decode(errors="replace")
        return Trial(
            name, False, why_not=ended, output="\n".join(printed.splitlines()[-_OUTPUT_LINES:])
        )


def main(name: str, answer: str, start: bool) -> None:
    """Try a backend here and now, and write the `Trial` to the file ``answer``."""
    # How the doctor ends it; what runs in a shell's background begins with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trial = _try_here(name, start)
    draft = Path(answer).with_suffix(".draft")
    draft.write_text(json.dumps(asdict(trial)))
    draft.rename(answer)


def _try_here(name: str, start: bool) -> Trial:
    support = support_of(name)
    known = Trial(
        name, support.available, not support.available, support.why_not,
        support.library, support.version, support.launcher,
    )  # fmt: skip
    if not support.available or not start:
        return known
    if not get_backend_class(name).capabilities.multi_rank:
        return _try_ranks(known, 1)
    trial = _try_ranks(known, 2)
    # NCCL wants a GPU a rank, and there may be one.
    return _try_ranks(known, 1) if trial.absent else trial


def _try_ranks(known: Trial, size: int) -> Trial:
    begin = time.monotonic()
    try:
        with World(known.name, size, threads=1) as world:
            gathered = world.run(_gather_ranks)
    except HarnessError as error:
        common = error.common if isinstance(error, WorldError) else error
        absent = isinstance(common, LibraryMissingError)
        return replace(known, works=False, absent=absent, why_not=str(common or error))
    seconds = round(time.monotonic() - begin, 2)
    if gathered != [list(range(size))] * size:
        wrong = f"{size} ranks gathered their numbers and got {gathered}"
        return replace(known, works=False, why_not=wrong)
    return replace(known, ranks=size, seconds=seconds)


def _gather_ranks(backend: BaseDistBackend) -> list[object]:
    return backend.all_gather_object(backend.rank)


def _run(command: list[str], output: IO[bytes], seconds: float) -> str:
    """Run a command that leads ranks, and say how it ended; it is ended on Ctrl-C too."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with interrupted_later():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"it had no answer within {seconds:g} s"
    finally:
        if process is not None:
            _bury(process)
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"its process ended with {how} before it could tell"


def _bury(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)  # it ends its own ranks
    try:
        process.wait(_BURY_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
