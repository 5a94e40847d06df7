"""A trial of one backend in a separate process, for ``disteval doctor``.

A broken library may crash, hang or print any text; in a process of its own, this does no harm.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from disteval.cli.backends import Support, support_of
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, LibraryMissingError, WorldError
from disteval.registry import get_backend_class
from disteval.world import World
from disteval.world.processes import Processes
from disteval.world.rank_process import import_code, import_path

_CODE = (
    import_code("sys.argv[1]", "disteval.cli.probe import main")
    + "main(sys.argv[2], sys.argv[3], sys.argv[4] == 'start')"
)
_TERMINATE_SECONDS = 15.0  # an interrupted world terminates its ranks in less
_MOST_BYTES = 1 << 16
_OUTPUT_LINES = 10


@dataclass(frozen=True)
class ProbeResult(Support):
    """The result of trying one backend, with its description.

    It works if its ranks exchanged an object; or, if no ranks were to be started, if it can be
    imported. It is absent if a package that it needs is not installed. ``output`` is the end of
    the output of a process that ended without a result.
    """

    works: bool = False
    absent: bool = False
    ranks: int = 0
    seconds: float = 0.0
    output: str = ""


def try_backend(name: str, start: bool, seconds: float) -> ProbeResult:
    """Import a backend, and start ranks with it if asked, in a process with a time limit."""
    with tempfile.TemporaryDirectory(prefix="disteval-doctor-") as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, "output")
        todo = "start" if start else "import"
        command = [sys.executable, "-c", _CODE, import_path(), name, str(answer), todo]
        output.touch()
        ended = _run(command, output, seconds)
        if answer.exists():
            return ProbeResult(**json.loads(answer.read_text()))
        with output.open("rb") as file:
            file.seek(-min(output.stat().st_size, _MOST_BYTES), os.SEEK_END)
            printed = file.read().decode(errors="replace")
        last = "\n".join(printed.splitlines()[-_OUTPUT_LINES:])
        return ProbeResult(name, available=False, why_not=ended, output=last)


def main(name: str, answer: str, start: bool) -> None:
    """Try a backend in this process, and write the `ProbeResult` to the file ``answer``."""
    # The doctor terminates this process by SIGINT, which shells ignore in background jobs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = _try_here(name, start)
    draft = Path(answer).with_suffix(".draft")
    draft.write_text(json.dumps(asdict(result)))
    draft.rename(answer)


def _try_here(name: str, start: bool) -> ProbeResult:
    support = support_of(name)
    known = ProbeResult(**vars(support), works=support.available, absent=not support.available)
    if not support.available or not start:
        return known
    if not get_backend_class(name).capabilities.multi_rank:
        return _try_ranks(known, 1)
    result = _try_ranks(known, 2)
    # NCCL needs one GPU for each rank, and there may be only one.
    return _try_ranks(known, 1) if result.absent else result


def _try_ranks(known: ProbeResult, size: int) -> ProbeResult:
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
        wrong = f"{size} ranks gathered their numbers and received {gathered}"
        return replace(known, works=False, why_not=wrong)
    return replace(known, ranks=size, seconds=seconds)


def _gather_ranks(backend: BaseDistBackend) -> list[object]:
    return backend.all_gather_object(backend.rank)


def _run(command: list[str], output: Path, seconds: float) -> str:
    """Run a command that leads ranks, and describe how it ended; Ctrl-C ends it, too."""
    processes = Processes()
    try:
        processes.start(command, dict(os.environ), output)
        status = processes.how_ended(0, seconds)
    finally:
        processes.end(_TERMINATE_SECONDS, signal.SIGINT)  # at which it ends its ranks
        processes.close()
    if status is None:
        return f"there was no result within {seconds:g} s"
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"its process ended with {how} without a result"
