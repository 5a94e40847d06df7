"""A session: many runs, some at a time, each in namespaces of its own, and what they found."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suites.faults.checker import judge
from suites.faults.kinds import (
    ENDING_SECONDS,
    KINDS,
    PROGRAM,
    START_SECONDS,
    TIMEOUTS,
    Kind,
    environment,
)
from suites.faults.schedule import Draw, draw

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork"]
_UNSHARE += ["--mount-proc", "--kill-child", "--"]
_ROOT = Path(__file__).parents[2]
_NEEDS_NAMESPACES = ("full disk", "lost connection")


@dataclass
class Found:
    """What one run found.

    Attributes:
        draw: The run.
        result: ``right``, ``named error``, ``killed``, ``missed`` or ``skipped``.
        wrong: The violations.
        text: How it went, in a line.
        details: Everything that was seen.
    """

    draw: Draw
    result: str
    wrong: list[str] = field(default_factory=list)
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class Session:
    """Does runs in one folder, and knows what each kind of run is like without a fault."""

    def __init__(self, folder: Path, truth: dict[str, Any]) -> None:
        self._folder, self._truth = folder, truth
        self._usual: dict[int, dict[str, Any]] = {}
        self._locks = [threading.Lock() for _ in KINDS]
        self._numbers = itertools.count()
        # Nobody else has the end to write to, so runs read its end when this process has ended.
        self._input, self._held = os.pipe()
        self.why_not_isolated = _why_no_namespaces()

    def close(self) -> None:
        """End the runs that are under way."""
        os.close(self._held)

    def run(self, seed: int) -> Found:
        """Do the run of a seed."""
        drawn = draw(seed)
        kind = KINDS[drawn.kind]
        reason = kind.missing()
        if drawn.fault in _NEEDS_NAMESPACES and self.why_not_isolated:
            reason = reason or self.why_not_isolated
        if reason:
            return Found(drawn, "skipped", text=reason)
        usual = self._usual_of(drawn.kind)
        if usual["wrong"]:
            return Found(drawn, "right", usual["wrong"], "without a fault", usual["found"])
        found = self._do(kind, drawn, usual["seconds"])
        if "ending" not in found:
            return Found(drawn, "right", [f"the run itself failed: {found['error']}"], "", found)
        result, wrong = judge(kind, drawn, found, self._truth | {"weights": usual["weights"]})
        ending = found["ending"]
        if len(found["done"]) < 2 and drawn.fault != "none":  # the moment or the victim never came
            result = "missed" if not wrong else result
        text = f"exit {ending['status']} after {ending['seconds']:.1f} s, gone {ending['gone']:.1f}"
        return Found(drawn, result, wrong, text, found)

    def _usual_of(self, number: int) -> dict[str, Any]:
        """Run a kind once without a fault, and return how long it takes and what it leaves."""
        with self._locks[number]:
            if number not in self._usual:
                kind = KINDS[number]
                found = self._do(kind, None, 60.0)
                wrong = [f"without a fault: {found.get('error')}"]
                if "ending" in found:
                    wrong = judge(kind, None, found, self._truth | {"weights": None})[1]
                self._usual[number] = {
                    "seconds": found.get("ending", {}).get("seconds", 0.0),
                    "weights": found.get("weights"),
                    "wrong": [f"without a fault: {each}" for each in wrong],
                    "found": found,
                }
            return self._usual[number]

    def _do(self, kind: Kind, drawn: Draw | None, usual: float) -> dict[str, Any]:
        """Do one run in a folder of its own, and return what was seen."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        limit, grace = _limit(kind, drawn, usual), 10.0 * _load()
        if kind.outer and drawn is not None:  # ranks of a launcher that is gone end by themselves
            grace = limit
        spec = {
            "command": kind.command(self._folder / "data", folder / "out"),
            "sweep": [sys.executable, str(PROGRAM), "threads", "threads", "1", "20"],
            "environment": environment(folder),
            "draw": drawn.values() if drawn else None,
            "isolated": not self.why_not_isolated,
            "outer": kind.outer,
            "world_size": kind.world_size,
            "what": kind.what,
            "usual": usual,
            "limit": limit,
            "grace": grace,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "suites.faults.inside", str(folder)]
        if not self.why_not_isolated:
            command = [*_UNSHARE, *command]
        try:
            done = subprocess.run(
                command,
                cwd=_ROOT,
                stdin=self._input,
                capture_output=True,
                text=True,
                timeout=2 * limit + 120,
            )
            if (folder / "found.json").exists():
                return dict(json.loads((folder / "found.json").read_text()))
            return {"error": done.stderr[-800:] or f"exit status {done.returncode}"}
        except subprocess.TimeoutExpired:
            return {"error": f"the run did not end within {2 * limit + 120:.0f} s"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _load() -> float:
    """Return how many times slower than alone a process runs here now, roughly."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _limit(kind: Kind, drawn: Draw | None, usual: float) -> float:
    """Return the seconds within which all must be over, from the deadlines that are documented."""
    detail = drawn.detail if drawn else {}
    limit = 3 * usual + ENDING_SECONDS * _load()
    limit += 2 * detail.get("for", 0) + detail.get("until killed after", 0)
    if drawn is None or drawn.fault in ("stop", "lost connection", "full disk"):
        # A wait of the start and of an order run out; a check tries again in a fresh world.
        waits = START_SECONDS + TIMEOUTS[kind.what] + ENDING_SECONDS
        limit += waits * (3 if kind.what == "check" else 1)
    return limit


def _why_no_namespaces() -> str:
    """Return why runs can't have namespaces of their own; nothing where they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare on this machine"
    done = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True)
    return f"unshare is refused: {done.stderr.strip()}" if done.returncode else ""
