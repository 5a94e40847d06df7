"""One run, done by a process that is the first of its namespaces: all below it ends with it.

``python -m suites.faults.inside FOLDER`` reads ``spec.json`` there, and writes ``found.json``. It
gives the run up when its standard input ends, as it does with the session.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from suites.faults import checker
from suites.faults.runs import KINDS, Draw, draw, environment
from suites.helpers.namespaces import others

_POLL_SECONDS = 0.015
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "prterun", "prted", "orted"}
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")


class Run:
    """A command, what is seen of it, and the harm that is done to it.

    Args:
        folder: The folder of the run.
        command: The words of the command.
        world_size: The number of its ranks that run beside its leader.
        outer: Whether a launcher of the user's own starts the command.

    Attributes:
        done: What was done to it, in words.
        seen: When each event was first seen: the control directory is there, all ranks are, the
            command has written a file, a rank has ended, the control directory is gone.
    """

    def __init__(self, folder: Path, command: list[str], world_size: int, outer: bool) -> None:
        self.folder, self.ranks, self.outer = folder, world_size - outer, outer
        self.done: list[str] = []
        self.seen: dict[str, float] = {}
        self._most_ranks = 0
        self._before = _below(folder / "out")
        self._streams = [(folder / name).open("wb+") for name in ("stdout", "stderr")]
        self._begin = time.monotonic()
        self._leader = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL,
            stdout=self._streams[0], stderr=self._streams[1], start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def watch(
        self, limit: float, grace: float, drawn: Draw | None = None, usual: float = 0.0
    ) -> dict[str, Any]:
        """Wait until all has ended, do harm at the drawn moment, and return how it ended.

        Args:
            limit: The seconds within which all has to end.
            grace: The seconds within which all has to end after the command.
            drawn: The harm.
            usual: The seconds that such a command takes without harm.
        """
        status, ended, steps, due = None, 0.0, None, 0.0
        while True:
            now, running = time.monotonic() - self._begin, others()
            with suppress(ChildProcessError):  # after that look, so what had ended has a status
                while (one := os.waitpid(-1, os.WNOHANG))[0]:
                    if one[0] == self._leader.pid:
                        status, ended = os.waitstatus_to_exitcode(one[1]), now
            self._see(running, now)
            late = now > limit or (status is not None and now > ended + grace)
            if late or not (running or status is None):
                break
            if drawn is not None:
                if steps is None and self._is_due(drawn, now, usual):
                    steps, due = self._harm(drawn), now
                while steps is not None and now >= due and status is None:
                    due = now + next(steps, float("inf"))
            if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
                raise SystemExit("the session has ended")
        left = [f"{pid} {_role(pid, self._leader.pid, self.outer)}" for pid in running]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        said = [Path(stream.name).read_text(errors="replace") for stream in self._streams]
        found = {"status": status, "seconds": ended, "gone": now, "left": left}
        return found | {"out": said[0], "err": said[1], "events": self.seen}

    def _see(self, running: list[int], now: float) -> None:
        """Note each event when it is first seen."""
        ranks = len(self._of("rank", running))
        self._most_ranks = max(self._most_ranks, ranks)
        names = _below(self.folder / "tmp")
        directory = any(name.startswith("disteval-") and os.sep in name for name in names)
        facts = {
            "directory": directory,
            "ranks": ranks >= self.ranks > 0,
            "file": bool(_below(self.folder / "out") - self._before),
            "ending": "ranks" in self.seen and ranks < self._most_ranks,
            "directory gone": "directory" in self.seen and not directory,
        }
        for name in (name for name, is_true in facts.items() if is_true):
            self.seen.setdefault(name, round(now, 3))

    def _is_due(self, drawn: Draw, now: float, usual: float) -> bool:
        if not drawn.event:
            return now >= drawn.fraction * usual
        return now >= self.seen.get(drawn.event, float("inf")) + drawn.delay

    def _of(self, role: str, running: list[int]) -> list[int]:
        """Return the processes of a role, by their ranks."""
        roles = {pid: _role(pid, self._leader.pid, self.outer) for pid in running}
        found = [pid for pid in running if roles[pid][0] == role]
        return sorted(found, key=lambda pid: (roles[pid][1], pid))

    def _harm(self, drawn: Draw) -> Iterator[float]:
        """Do harm step by step, and yield the seconds until the next step."""
        detail, victim = drawn.detail, 0
        while drawn.whom and not victim:
            if found := self._of(drawn.whom, others()):
                victim = found[drawn.which % len(found)]
            else:
                yield 0.01

        def send(number: signal.Signals) -> None:
            self.done.append(f"{number.name} to {victim}")
            with suppress(ProcessLookupError):
                os.kill(victim, number)

        if drawn.fault == "kill":
            send(signal.Signals[detail["with"]])
        elif drawn.fault == "stop":
            send(signal.SIGSTOP)
            if detail:
                yield detail["until killed after"]
                send(signal.SIGKILL)
        elif drawn.fault == "pause":
            for _ in range(detail["times"]):
                send(signal.SIGSTOP)
                yield detail["for"]
                send(signal.SIGCONT)
                yield detail["for"] / 3
        elif drawn.fault == "Ctrl-C":
            for gap in [0.0, *detail["gaps"]]:
                yield gap
                self.done.append("Ctrl-C")
                with suppress(ProcessLookupError):
                    os.killpg(self._leader.pid, signal.SIGINT)
        elif drawn.fault == "clock jump":
            self.done.append("the clock has jumped")
            (self.folder / "clock.new").write_text(str(detail["by"]))
            (self.folder / "clock.new").replace(self.folder / "clock")
        elif drawn.fault != "none":
            place = self.folder / detail.get("of", "")
            self.done.append(f"{drawn.fault} {place}")
            _fill(place, detail["left"]) if detail.get("of") else _set_loopback("down")
            if detail["for"]:
                yield detail["for"]
                self.undo()

    def undo(self) -> None:
        """Repair the network, the disk and the clock for what follows."""
        _set_loopback("up")
        for name in ("out/filler", "tmp/filler", "clock"):
            (self.folder / name).unlink(missing_ok=True)


def _role(pid: int, root: int, outer: bool) -> tuple[str, int]:
    """Return what a process of a run is, and its rank where it has one."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "helper", -1
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    rank = next((int(variables[name]) for name in _RANKS if name in variables), -1)
    text = " ".join(words[:4])
    if name == "disteval helper":
        return "helper", -1
    if {Path(word).name for word in words[:2]} & _LAUNCHERS or "torch.distributed.run" in words:
        return "launcher", -1
    if found := re.fullmatch(r"rank (\d+)", name):
        return "rank", int(found[1])
    if pid == root:
        return "leader", -1
    if outer and rank >= 0 and "disteval" in text:
        return "rank" if rank else "leader", rank
    return "helper", -1


def _below(folder: Path) -> set[str]:
    """Return the paths below a folder in which others create and remove files meanwhile."""
    found = set()
    for place, folders, names in os.walk(folder):
        found |= {os.path.relpath(Path(place, name), folder) for name in (*folders, *names)}
    return found


def _fill(place: Path, left: int) -> None:
    """Leave so many bytes on the disk of a folder."""
    there = os.statvfs(place)
    with (place / "filler").open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, there.f_bavail * there.f_frsize - left))


def _set_loopback(state: str) -> None:
    """Set the loopback interface of this network namespace up or down."""
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def _mount(place: Path, size: str) -> None:
    options = ["-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs"]
    subprocess.run(["mount", *options, str(place)], check=True)


def main() -> None:
    """Do the run, resume a training that it has ended, and write down all that was found."""
    folder = Path(sys.argv[1])
    spec = json.loads((folder / "spec.json").read_text())
    kind, limit, out = KINDS[spec["kind"]], spec["limit"], folder / "out"
    drawn = draw(spec["seed"]) if spec["seed"] is not None else None
    sizes = {"out": "700m" if kind.what == "fit" else "32m", "tmp": "48m", "run": "16m"}
    for name, size in sizes.items():
        (folder / name).mkdir()
        _mount(folder / name, size)
    _mount(Path("/dev/shm"), "1g")
    _set_loopback("up")
    if drawn is not None and drawn.old and kind.what != "World":
        for name in ("report.json", "page.html")[: 1 + (kind.what == "check")]:
            (out / name).write_text(checker.OLD)
    command = kind.command(Path(spec["data"]), out)
    run = Run(folder, command, kind.world_size, kind.outer)
    found = {"ending": run.watch(limit, spec["grace"], drawn, spec["usual"]), "done": run.done}
    run.undo()
    found["damaged"] = checker.damaged_in(out)
    found["report"] = checker.report_in(out)
    found["left"] = checker.left_in(folder)
    if kind.what == "fit":
        if found["ending"]["status"] != 0:
            again = Run(folder, command, kind.world_size, kind.outer)
            found["resume"] = again.watch(limit, spec["grace"])
            found["damaged after resume"] = checker.damaged_in(out)
        found["weights"] = checker.weights_in(out / "work")
    (folder / "found.new").write_text(json.dumps(found))
    (folder / "found.new").replace(folder / "found.json")


if __name__ == "__main__":
    main()
