"""The runs that faults happen to: which command, on which ranks, and how long it may take."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from suites.helpers.processes import mpi_variables, mpirun, torchrun

PROGRAM = Path(__file__).with_name("world_program.py")
CLOCK = Path(__file__).with_name("clock")

LIBRARIES: dict[str, tuple[str, ...]] = {
    "torch_cpu": ("torch",), "mpi4py": ("mpi4py",), "threads": (), "non_dist": (), "leases": (),
}  # fmt: skip

TIMEOUTS = {"eval": 30.0, "check": 20.0, "fit": 30.0, "World": 15.0}
"""What ``--timeout`` is in each command, in seconds."""

START_SECONDS = 60.0
"""What ranks get to start, whatever ``--timeout`` is; see docs/command_line.md."""

ENDING_SECONDS = 30.0
"""What a world may take to end: leave, be terminated, be killed, and its ranks' stacks read."""


@dataclass(frozen=True)
class Kind:
    """A command on so many ranks of one backend.

    Attributes:
        what: ``eval``, ``check``, ``fit`` or ``World``.
        backend: The backend under it; ``leases`` for ranks that borrow, which need none.
        launcher: ``local``, ``threads``, ``mpirun`` or ``torchrun``.
        world_size: The number of ranks.
        outer: Whether the launcher is the user's own, and starts the command itself.
        weight: How often it is drawn.
    """

    what: str
    backend: str
    launcher: str
    world_size: int
    outer: bool = False
    weight: int = 2

    @property
    def name(self) -> str:
        """The command in a few words."""
        by = f"{self.launcher} → " if self.outer else ""
        own = "" if self.outer else f", {self.launcher}"
        return f"{by}{self.what} {self.backend}{own}, {self.world_size}"

    @property
    def own_processes(self) -> bool:
        """Whether ranks are processes apart from the leader."""
        return self.launcher != "threads"

    def missing(self) -> str:
        """Return why this kind can't run here; nothing where it can."""
        wanted = [*LIBRARIES[self.backend]]
        if self.what in ("eval", "fit") or self.launcher == "torchrun":
            wanted.append("torch")
        if self.launcher == "mpirun":
            wanted.append("mpi4py")
        if self.what == "check":
            wanted.append("hypothesis")
        gone = [name for name in wanted if importlib.util.find_spec(name) is None]
        return f"{' and '.join(dict.fromkeys(gone))} not installed" if gone else ""

    def command(self, data: Path, out: Path) -> list[str]:
        """Return the words of the command, which writes into ``out``."""
        words = [str(Path(sys.executable).with_name("disteval")), self.what]
        size = [] if self.outer else [f"--world-size={self.world_size}"]
        timeout = f"--timeout={TIMEOUTS[self.what]:g}"
        report = f"--json={out / 'report.json'}"
        if self.what == "World":
            options = [self.backend, self.launcher, str(self.world_size), str(TIMEOUTS["World"])]
            words = [sys.executable, str(PROGRAM), *options]
        elif self.what == "check":
            rules = "1.1,2.1,3.1" if self.world_size == 1 or self.outer else "1.1,2.1,7.2"
            page = f"--html={out / 'page.html'}"
            if self.world_size == 3:  # so many ranks that they are forked off servers
                size = ["--world-size=1,2,3"]
            words += [self.backend, *size, f"--rules={rules}", "--examples=3"]
            words += [timeout, report, page]
        elif self.what == "fit":
            words += [f"--data={data}", f"--work-dir={out / 'work'}", "--epochs=2", *size]
            words += ["--resume=auto", timeout, report]
        else:
            words += ["--elastic"] if self.backend == "leases" else [f"--backend={self.backend}"]
            words += [f"--data={data}", "--batch-size=64"]
            words += [*size, timeout, report]
        if not self.outer:
            return words
        started_by = mpirun if self.launcher == "mpirun" else torchrun
        return [*started_by(self.world_size), *words]


KINDS = [
    Kind("eval", "torch_cpu", "local", 2, weight=3),
    Kind("eval", "torch_cpu", "local", 3, weight=1),
    Kind("eval", "mpi4py", "mpirun", 2, weight=3),
    Kind("eval", "threads", "threads", 3),
    Kind("eval", "leases", "local", 2, weight=3),
    Kind("eval", "non_dist", "local", 1),
    Kind("eval", "mpi4py", "mpirun", 2, outer=True, weight=3),
    Kind("eval", "torch_cpu", "torchrun", 2, outer=True, weight=2),
    Kind("check", "threads", "threads", 2, weight=3),
    Kind("check", "mpi4py", "mpirun", 2, weight=7),
    Kind("check", "torch_cpu", "local", 3, weight=3),
    Kind("check", "non_dist", "local", 1),
    Kind("check", "mpi4py", "mpirun", 2, outer=True, weight=3),
    Kind("check", "torch_cpu", "torchrun", 2, outer=True, weight=1),
    Kind("fit", "torch_cpu", "local", 1, weight=2),
    Kind("fit", "torch_cpu", "local", 2, weight=3),
    Kind("World", "threads", "threads", 3, weight=3),
    Kind("World", "mpi4py", "mpirun", 3, weight=7),
    Kind("World", "torch_cpu", "local", 2, weight=3),
    Kind("World", "torch_cpu", "torchrun", 2, weight=1),
    Kind("World", "non_dist", "local", 1, weight=3),
]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a run in its own folder."""
    dropped = ("CIFAR10_ROOT", "DISTEVAL_CONTROL_DIR", "PYTHONSTARTUP")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | mpi_variables() | {
        "TMPDIR": str(folder / "tmp"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "PYTHONPATH": str(CLOCK),
        "FAULTS_CLOCK": str(folder / "clock"),
        "OMP_NUM_THREADS": "1",  # threads of one run do not wait for cores that others use
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }  # fmt: skip
