"""The schedule: what happens, to whom, and when, all drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from suites.faults.kinds import KINDS, Kind

FAULTS = {
    "none": 3,
    "kill": 24,
    "stop": 11,
    "pause": 10,
    "slow": 8,
    "Ctrl-C": 20,
    "full disk": 12,
    "lost connection": 7,
    "clock jump": 5,
}
"""Each fault, and how often it is drawn."""

EVENTS = ("directory", "first rank", "all ranks", "output", "file", "ending", "directory gone")
"""What a moment may be tied to; `inside.Run` sees them: the control directory is there, the first
rank, all ranks; the command has printed something, has written a file; a rank has ended, the
control directory is gone."""


@dataclass(frozen=True)
class Draw:
    """One drawn run.

    Attributes:
        seed: What it was drawn from.
        kind: The place of its kind in `KINDS`.
        fault: One of `FAULTS`.
        whom: ``leader``, ``launcher``, ``helper`` or ``rank``, for faults of one process.
        which: Which of the ranks, modulo how many there are.
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

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)

    def story(self) -> str:
        """Say what happens, to whom and when."""
        if self.fault == "none":
            return "no fault"
        whom = f" of rank {self.which}" if self.whom == "rank" else f" of the {self.whom}"
        what = self.fault + (whom if self.whom else "")
        if told := ", ".join(f"{name} {value}" for name, value in self.detail.items()):
            what += f" ({told})"
        when = f"at {self.fraction:.0%} of the usual time"
        if self.event:
            when = f"{self.delay:.2f} s after {self.event!r}"
        return f"{what} {when}"


def draw(seed: int) -> Draw:
    """Draw one run; the same seed draws the same run on every machine."""
    rng = random.Random(seed)
    kind = rng.choices(range(len(KINDS)), [kind.weight for kind in KINDS])[0]
    fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    whom = ""
    if fault in ("kill", "stop", "pause", "slow"):
        whom = rng.choice(_victims(KINDS[kind]))
    event = ""
    if rng.random() < 0.6:
        event = rng.choice(_events(KINDS[kind], whom))
    fraction = round(rng.uniform(0, 0.95 if whom not in ("", "leader") else 1.05), 3)
    # Soon after a late event the run is over.
    longest = 1.5 if event in ("directory", "first rank", "all ranks") else 0.1
    delay = round(rng.choice([0.0, rng.uniform(0, 0.1), rng.uniform(0, longest)]), 3)
    detail = _detail(fault, whom, rng)
    if KINDS[kind].what == "World" and fault == "full disk":
        detail["of"] = "tmp"  # this program writes nothing
    which = rng.randrange(KINDS[kind].world_size)
    old = rng.random() < 0.5
    return Draw(seed, kind, fault, whom, which, event, fraction, delay, detail, old)


def _events(kind: Kind, whom: str) -> list[str]:
    """Return what is seen in every run of a kind while the victim is there."""
    if whom not in ("", "leader"):
        return ["directory", "first rank", "all ranks", "ending"]
    never = {"file"} if kind.what == "World" else set()
    never |= set() if kind.own_processes else {"first rank", "all ranks", "ending"}
    return [event for event in EVENTS if event not in never]


def _victims(kind: Kind) -> list[str]:
    found = ["leader"]
    if kind.own_processes:
        found += ["rank", "rank", "rank"]
    if kind.launcher in ("mpirun", "torchrun"):
        found.append("launcher")
    if kind.own_processes and not kind.outer:
        found.append("helper")
    return found


def _detail(fault: str, whom: str, rng: random.Random) -> dict[str, Any]:
    """Draw what a fault needs beside its victim and its moment."""
    if fault == "kill":
        signals = ["SIGKILL"] * 5 + ["SIGTERM", "SIGABRT", "SIGHUP"]
        return {"with": rng.choice(signals)}
    if fault == "stop":  # nobody but the user ends a stopped leader
        return {"until killed after": round(rng.uniform(1, 5), 2)} if whom != "rank" else {}
    if fault == "pause":
        return {"for": round(rng.uniform(0.2, 4), 2)}
    if fault == "slow":
        return {"for": round(rng.uniform(1, 4), 2), "each": round(rng.uniform(0.02, 0.2), 3)}
    if fault == "Ctrl-C":
        gaps = [round(rng.choice([0.0, rng.uniform(0, 0.4), rng.uniform(0, 3)]), 3) for _ in "12"]
        return {"gaps": gaps[: rng.choice([0, 0, 1, 1, 1, 2])]}
    if fault == "full disk":
        where = rng.choice(["out", "tmp"])
        free = rng.choice([0, 0, 4096, 20_000, 1_000_000])
        return {"of": where, "left": free, "for": rng.choice([0, 0, 2])}
    if fault == "lost connection":
        return {"for": rng.choice([0, round(rng.uniform(0.5, 4), 2)])}
    if fault == "clock jump":
        return {"by": rng.choice([-1, 1]) * rng.choice([5, 3600, 40_000_000])}
    return {}
