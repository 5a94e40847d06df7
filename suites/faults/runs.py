"""The runs: which command, what happens to it, to whom and when, all drawn from one seed."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.helpers.processes import mpi_variables, mpirun, torchrun

PROGRAM = Path(__file__).with_name("world_program.py")

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
        how = f"started by {self.launcher}" if self.outer else self.launcher
        return f"{self.what} {self.backend}, {how}, {self.world_size}"

    def command(self, data: Path, out: Path) -> list[str]:
        """Return the words of the command, which writes into ``out``."""
        words = [str(Path(sys.executable).with_name("disteval")), self.what]
        size = [] if self.outer else [f"--world-size={self.world_size}"]
        given = [f"--timeout={TIMEOUTS[self.what]:g}", f"--json={out / 'report.json'}"]
        if self.what == "World":
            options = [self.backend, self.launcher, str(self.world_size), str(TIMEOUTS["World"])]
            words = [sys.executable, str(PROGRAM), *options]
        elif self.what == "check":
            rules = "1.1,2.1,3.1" if self.world_size == 1 or self.outer else "1.1,2.1,7.2"
            if self.world_size == 3:  # so many ranks that they are forked off servers
                size = ["--world-size=1,2,3"]
            words += [self.backend, *size, f"--rules={rules}", "--examples=3", *given]
            words += [f"--html={out / 'page.html'}"]
        elif self.what == "fit":
            words += [f"--data={data}", f"--work-dir={out / 'work'}", "--epochs=2", *size]
            words += ["--resume=auto", *given]
        else:
            words += ["--elastic"] if self.backend == "leases" else [f"--backend={self.backend}"]
            words += [f"--data={data}", "--batch-size=64", *size, *given]
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

FAULTS = {
    "none": 3, "kill": 24, "stop": 11, "pause": 18, "Ctrl-C": 20, "full disk": 12,
    "lost connection": 7, "clock jump": 5,
}  # fmt: skip
"""Each fault, and how often it is drawn."""


@dataclass(frozen=True)
class Draw:
    """One drawn run.

    Attributes:
        seed: What it was drawn from.
        kind: The place of its kind in `KINDS`.
        fault: One of `FAULTS`.
        whom: ``leader``, ``launcher``, ``helper`` or ``rank``, for faults of one process.
        which: Which of the processes of that role, modulo how many there are.
        event: What the moment is tied to; empty where it is a fraction of the usual time.
        fraction: That fraction.
        delay: The seconds after the event.
        detail: What the fault needs beside that.
        old: Whether an older report is there already.
    """

    seed: int
    kind: int
    fault: str
    whom: str
    which: int
    event: str
    fraction: float
    delay: float
    detail: dict[str, Any]
    old: bool

    def story(self) -> str:
        """Say what happens, to whom and when."""
        when = f"at {self.fraction:.0%} of the usual time"
        if self.event:
            when = f"{self.delay:.2f} s after {self.event!r}"
        return f"{self.fault} {self.whom} {self.detail or ''} {when}"


def draw(seed: int) -> Draw:
    """Draw one run; the same seed draws the same run on every machine."""
    rng = random.Random(seed)
    number = rng.choices(range(len(KINDS)), [kind.weight for kind in KINDS])[0]
    kind, fault = KINDS[number], rng.choices([*FAULTS], [*FAULTS.values()])[0]
    whom = rng.choice(_victims(kind)) if fault in ("kill", "stop", "pause") else ""
    event = rng.choice(_events(kind, whom)) if rng.random() < 0.6 else ""
    # Soon after a late event the run is over.
    longest = 1.5 if event in ("directory", "ranks") else 0.1
    return Draw(
        seed, number, fault, whom, rng.randrange(4), event,
        round(rng.uniform(0, 0.95 if whom not in ("", "leader") else 1.05), 3),
        round(rng.choice([0.0, rng.uniform(0, 0.1), rng.uniform(0, longest)]), 3),
        _detail(kind, fault, whom, rng), rng.random() < 0.5,
    )  # fmt: skip


def _victims(kind: Kind) -> list[str]:
    found = ["leader"]
    if kind.launcher != "threads":
        found += ["rank"] * 3 + ["helper"] * (not kind.outer)
    return found + ["launcher"] * (kind.launcher in ("mpirun", "torchrun"))


def _events(kind: Kind, whom: str) -> list[str]:
    """Return what is seen in every run of a kind while the victim is there."""
    of_ranks = ["ranks", "ending"] if kind.launcher != "threads" else []
    if whom not in ("", "leader"):
        return ["directory", *of_ranks]
    return ["directory", *of_ranks, "directory gone", *["file"] * (kind.what != "World")]


def _detail(kind: Kind, fault: str, whom: str, rng: random.Random) -> dict[str, Any]:
    """Draw what a fault needs beside its victim and its moment."""
    if fault == "kill":
        return {"with": rng.choice(["SIGKILL"] * 5 + ["SIGTERM", "SIGABRT", "SIGHUP"])}
    if fault == "stop" and whom != "rank":  # nobody but the user ends a stopped leader
        return {"until killed after": round(rng.uniform(1, 5), 2)}
    if fault == "pause":
        times = rng.choice([1, 20])
        return {"times": times, "for": round(rng.uniform(0.2, 4) / times, 3)}
    if fault == "Ctrl-C":
        gaps = [round(rng.choice([0.0, rng.uniform(0, 0.4), rng.uniform(0, 3)]), 3) for _ in "12"]
        return {"gaps": gaps[: rng.choice([0, 0, 1, 1, 1, 2])]}
    if fault == "full disk":
        of = "tmp" if kind.what == "World" else rng.choice(["out", "tmp"])
        left = rng.choice([0, 0, 4096, 20_000, 1_000_000])
        return {"of": of, "left": left, "for": rng.choice([0, 0, 2])}
    if fault == "lost connection":
        return {"for": rng.choice([0, round(rng.uniform(0.5, 4), 2)])}
    if fault == "clock jump":
        return {"by": rng.choice([-1, 1]) * rng.choice([5, 3600, 40_000_000])}
    return {}


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a run in its own folder."""
    dropped = ("CIFAR10_ROOT", "DISTEVAL_CONTROL_DIR", "PYTHONSTARTUP")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    paths = [str(Path(__file__).with_name("clock")), os.environ.get("PYTHONPATH", "")]
    return kept | mpi_variables() | {
        "TMPDIR": str(folder / "tmp"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "FAULTS_CLOCK": str(folder / "clock"),
        "OMP_NUM_THREADS": "1",  # threads of one run do not wait for cores that others use
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }  # fmt: skip
