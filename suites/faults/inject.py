"""The faults, each a generator that does harm step by step and yields the seconds until the next.

They return the words of what they did, for the story.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

from suites.faults.processes import Process
from suites.faults.schedule import Draw

Steps = Generator[float, None, None]

_SIOCSIFFLAGS = 0x8914
_UP, _RUNNING = 0x1, 0x40


class Harm:
    """What is done to one run.

    Args:
        draw: What to do.
        folder: The run's folder.
        group: The process group of the command, to which a terminal sends Ctrl-C.
        running: A function that returns the present processes.

    Attributes:
        done: What was done, in words.
    """

    def __init__(
        self, draw: Draw, folder: Path, group: int, running: Callable[[], list[Process]]
    ) -> None:
        self._draw, self._folder, self._group = draw, folder, group
        self._running = running
        self.done: list[str] = []
        self.victim: Process | None = None

    def steps(self) -> Steps:
        """Return the generator of the fault that was drawn."""
        name = self._draw.fault.lower().replace(" ", "_").replace("-", "_")
        steps: Steps = getattr(self, f"_{name}")()
        return steps

    def undo(self) -> None:
        """Repair the network, the disk and the clock for what follows."""
        with suppress(OSError):
            set_loopback(True)
        for place in ("out", "tmp"):
            (self._folder / place / "filler").unlink(missing_ok=True)
        (self._folder / "clock").unlink(missing_ok=True)

    def _none(self) -> Steps:
        yield from ()

    def _choose(self) -> Steps:
        """Wait until there is a process that was drawn, and make it the victim."""
        while self.victim is None:
            found = [each for each in self._running() if each.role == self._draw.whom]
            if found:
                self.victim = sorted(found, key=lambda p: p.rank)[self._draw.which % len(found)]
                self.done.append(str(self.victim))
                return
            yield 0.01

    def _signal(self, number: signal.Signals) -> None:
        assert self.victim is not None
        self.done.append(number.name)
        with suppress(ProcessLookupError):
            os.kill(self.victim.pid, number)

    def _kill(self) -> Steps:
        yield from self._choose()
        self._signal(signal.Signals[self._draw.detail["with"]])

    def _stop(self) -> Steps:
        yield from self._choose()
        self._signal(signal.SIGSTOP)
        if "until killed after" in self._draw.detail:
            yield self._draw.detail["until killed after"]
            self._signal(signal.SIGKILL)

    def _pause(self) -> Steps:
        yield from self._choose()
        self._signal(signal.SIGSTOP)
        yield self._draw.detail["for"]
        self._signal(signal.SIGCONT)

    def _slow(self) -> Steps:
        yield from self._choose()
        each = self._draw.detail["each"]
        for _ in range(int(self._draw.detail["for"] / each / 2)):
            self._signal(signal.SIGSTOP)
            yield each * 1.5
            self._signal(signal.SIGCONT)
            yield each * 0.5
        del self.done[3:]

    def _ctrl_c(self) -> Steps:
        for gap in [0.0, *self._draw.detail["gaps"]]:
            yield gap
            self.done.append("Ctrl-C")
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGINT)

    def _full_disk(self) -> Steps:
        filler = self._folder / self._draw.detail["of"] / "filler"
        there = os.statvfs(filler.parent)
        size = max(0, there.f_bavail * there.f_frsize - self._draw.detail["left"])
        self.done.append(f"{size} bytes in {filler.parent.name}")
        with filler.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        if self._draw.detail["for"]:
            yield self._draw.detail["for"]
            filler.unlink(missing_ok=True)
            self.done.append("freed")

    def _lost_connection(self) -> Steps:
        set_loopback(False)
        self.done.append("lo down")
        if self._draw.detail["for"]:
            yield self._draw.detail["for"]
            set_loopback(True)
            self.done.append("lo up")

    def _clock_jump(self) -> Steps:
        yield from ()
        new = self._folder / "clock.new"
        new.write_text(str(self._draw.detail["by"]))
        new.replace(self._folder / "clock")
        self.done.append("jumped")


def set_loopback(up: bool) -> None:
    """Switch the loopback interface of this network namespace on or off."""
    with socket.socket() as any_socket:
        flags = _UP | _RUNNING if up else 0
        request = struct.pack("16sh14x", b"lo", flags)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
