"""One run, done by a process that is the first of its namespaces: all below it ends with it.

``python -m suites.faults.inside FOLDER`` reads ``spec.json`` there, and writes ``found.json``. It
gives the run up when its standard input ends, as it does with the session.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suites.faults import files
from suites.faults.inject import Harm, set_loopback
from suites.faults.processes import Process, Tree, adopt_orphans, reap
from suites.faults.schedule import Draw

_POLL_SECONDS = 0.015


@dataclass
class Ending:
    """How a command ended.

    Attributes:
        status: Its exit status, or None where it had to be ended.
        seconds: When it ended, after its start.
        gone: When the last process below it was gone.
        left: The processes that were left after the limit or the grace.
        out: What it printed.
        err: What it printed on standard error.
        events: When each event was seen.
    """

    status: int | None = None
    seconds: float = 0.0
    gone: float = 0.0
    left: list[str] = field(default_factory=list)
    out: str = ""
    err: str = ""
    events: dict[str, float] = field(default_factory=dict)


class Run:
    """A command, what is seen of it, and the harm that is done to it."""

    def __init__(self, spec: dict[str, Any], folder: Path, command: list[str], name: str) -> None:
        self._spec, self._folder, self._name = spec, folder, name
        streams = [(folder / f"{name}.{kind}").open("wb") for kind in ("out", "err")]
        self._begin = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=spec["environment"],
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.group = self._process.pid
        self.tree = Tree(self.group, spec["outer"])
        self.ending = Ending()
        self._most_ranks = 0
        self._before = _names_below(folder / "out")

    def watch(self, harm: Harm | None, draw: Draw | None, limit: float, grace: float) -> Ending:
        """Wait until all has ended, and do harm at the drawn moment."""
        try:
            self._watch(harm, draw, limit, grace)
        finally:
            for each in self.tree.running():
                os.kill(each.pid, signal.SIGKILL)
        self.ending.out, self.ending.err = (
            (self._folder / f"{self._name}.{kind}").read_text(errors="replace")
            for kind in ("out", "err")
        )
        return self.ending

    def _watch(self, harm: Harm | None, draw: Draw | None, limit: float, grace: float) -> None:
        ending, steps, due = self.ending, None, 0.0
        while True:
            now = time.monotonic() - self._begin
            running = self.tree.running()
            status = reap().get(self.group)  # after that look: what had ended by then has a status
            if status is not None:
                ending.status, ending.seconds = status, now
            self._see(running, now)
            # A process whose first thread has ended is a zombie, but not over.
            if not running and ending.status is not None:
                ending.gone = now
                break
            late = now > limit or (ending.status is not None and now > ending.seconds + grace)
            if late:
                ending.left = [f"{each}{_waits_in(each.pid)}" for each in running]
                ending.gone = now
                break
            if harm is not None and draw is not None:
                if steps is None and self._is_due(draw, now):
                    steps, due = harm.steps(), now
                    harm.done.append(f"at {now:.2f} s")
                while steps is not None and now >= due and ending.status is None:
                    try:
                        due = now + next(steps)
                    except StopIteration:
                        due = float("inf")
            if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
                raise SystemExit("the session has ended")

    def _see(self, running: list[Process], now: float) -> None:
        """Note each event when it is first seen."""
        seen = self.ending.events
        ranks = sum(each.role == "rank" for each in running)
        self._most_ranks = max(self._most_ranks, ranks)
        names = _names_below(self._folder / "tmp")
        directory = any(name.startswith("disteval-") and os.sep in name for name in names)
        all_ranks = self._spec["world_size"] - self._spec["outer"]
        facts = {
            "directory": directory,
            "first rank": ranks > 0,
            "all ranks": ranks >= all_ranks > 0,
            "output": any(
                (self._folder / f"{self._name}.{kind}").stat().st_size for kind in ("out", "err")
            ),
            "file": bool(_names_below(self._folder / "out") - self._before),
            "ending": "all ranks" in seen and ranks < self._most_ranks,
            "directory gone": "directory" in seen and not directory,
        }
        for name, true in facts.items():
            if true:
                seen.setdefault(name, round(now, 3))

    def _is_due(self, draw: Draw, now: float) -> bool:
        if not draw.event:
            return now >= draw.fraction * self._spec["usual"]
        return now >= self.ending.events.get(draw.event, float("inf")) + draw.delay


def _names_below(folder: Path) -> set[str]:
    """Return the paths below a folder in which others create and remove files meanwhile."""
    found = set()
    for place, folders, names in os.walk(folder):
        found |= {os.path.relpath(Path(place, name), folder) for name in (*folders, *names)}
    return found


def _waits_in(pid: int) -> str:
    try:
        return f" [in {Path(f'/proc/{pid}/wchan').read_text()}]"
    except OSError:
        return ""


def _prepare(spec: dict[str, Any], folder: Path) -> None:
    """Make the folders of the run, small disks of their own where there are namespaces."""
    sizes = {"out": "700m" if spec["what"] == "fit" else "32m", "tmp": "48m", "run": "16m"}
    for place, size in sizes.items():
        (folder / place).mkdir()
        if spec["isolated"]:
            _mount(folder / place, size)
        (folder / place).chmod(0o700)
    if spec["isolated"]:
        _mount(Path("/dev/shm"), "1g")
        set_loopback(True)
    if spec["draw"] and spec["draw"]["old"] and spec["what"] != "World":
        (folder / "out" / "report.json").write_text(files.OLD)
        if spec["what"] == "check":
            (folder / "out" / "page.html").write_text(files.OLD)


def _mount(place: Path, size: str) -> None:
    options = ["-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs"]
    subprocess.run(["mount", *options, str(place)], check=True)


def main() -> None:
    """Do the run, then what a user would do next, and write down all that was found."""
    folder = Path(sys.argv[1])
    spec = json.loads((folder / "spec.json").read_text())
    adopt_orphans()
    _prepare(spec, folder)
    draw = Draw(**spec["draw"]) if spec["draw"] else None
    run = Run(spec, folder, spec["command"], "command")
    harm = Harm(draw, folder, run.group, run.tree.running) if draw else None
    ending = run.watch(harm, draw, spec["limit"], spec["grace"])
    if harm is not None:
        if spec["isolated"]:
            set_loopback(True)
        harm.undo()
    out, places = folder / "out", (folder / "tmp", folder / "run")
    state, report = files.read_report(out / "report.json")
    found = {
        "ending": vars(ending),
        "done": harm.done if harm else [],
        "report": state,
        "values": report,
        "damaged": files.damaged_outputs(out),
        "left": files.left_in(*places),
    }
    if found["left"]:
        sweep = Run(spec, folder, spec["sweep"], "sweep").watch(None, None, spec["limit"], 10.0)
        found |= {"sweep": vars(sweep), "left after sweep": files.left_in(*places)}
    if spec["what"] == "fit":
        if ending.status != 0:
            again = Run(spec, folder, spec["command"], "resume")
            found["resume"] = vars(again.watch(None, None, spec["limit"], spec["grace"]))
            found["damaged after resume"] = files.damaged_outputs(out)
        found["weights"] = files.weights_of(out / "work")
    new = folder / "found.new"
    new.write_text(json.dumps(found))
    new.replace(folder / "found.json")


if __name__ == "__main__":
    main()
