"""What each rank was doing when a world failed, told so that a person can act on it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disteval.worlds import control
from disteval.worlds.journal import Position, read_position
from disteval.worlds.rank import STACK_SIGNAL, journal_path, output_path, stack_path

_STACK_SECONDS = 2.0
_POLL_SECONDS = 0.02
# Below these frames of a stack lies the harness, not what it was asked to run.
_OWN_FRAME = re.compile(r"worlds.(rank|world)\.py\", line \d+ in (carry_out|_run_with_backend)$")
# Threads that wait in every rank alike: for orders, for the end of Ray's node, for Ray's garbage.
_IDLE_THREAD = re.compile(
    r"(inbox\.py\", line \d+ in _watch|ray_node\.py\", .* in watch|gc_collect_manager\.py\", .*)$"
)
_OUTPUT_LINES = 20
_OUTPUT_BYTES = 1 << 16


@dataclass
class Fate:
    """What became of one rank.

    Attributes:
        rank: Which one.
        member: What it said of itself; None when it never reported.
        raised: The text of its traceback, when its order raised.
        summary: The exception's type and its message's first line, when its order raised.
        returned: Whether its order returned.
        lost: Whether its process ended or its channel closed.
        end: How its process ended, when it is lost.
        unseen: Why nothing more is known of it; empty where it could be looked at.
        stopped: Whether its process is stopped by a signal.
        position: Where it is in the sequence of collectives.
        stack: Its threads' stacks, innermost call first.
        output: The end of what it printed.
    """

    rank: int
    member: control.Hello | None = None
    raised: str = ""
    summary: str = ""
    returned: bool = False
    lost: bool = False
    end: str = ""
    unseen: str = ""
    stopped: bool = False
    position: Position = field(default_factory=lambda: Position(0, 0, ""))
    stack: str = ""
    output: str = ""


def examine(directory: Path, fates: Sequence[Fate]) -> None:
    """Read the journals, stacks and outputs; to be done before any process is ended."""
    for fate in fates:
        fate.position = read_position(journal_path(directory, fate.rank))
        fate.output = _tail(output_path(directory, fate.rank))
        fate.stopped = fate.member is not None and _is_stopped(fate.member.pid)
    pending = [f for f in fates if f.member and not (f.lost or f.raised or f.returned)]
    asked = [fate for fate in pending if _ask_for_stack(fate)]
    _await_stacks(directory, asked)


def report(headline: str, fates: Sequence[Fate], launcher_log: str = "") -> str:
    """Merge everything into one report: the headline, a line a rank, then the evidence."""
    last = max(fates, key=lambda f: f.position.entered).position
    lines = [headline, *(f"  rank {f.rank}: {_describe(f, last)}" for f in fates)]
    lines += _evidence("traceback", {f.rank: f.raised for f in fates})
    lines += _evidence("stack", {f.rank: f.stack for f in fates})
    lines += _evidence("end of the output", {f.rank: f.output for f in fates})
    lines += _section("end of the launcher's output", _last_lines(launcher_log))
    return "\n".join(lines)


def exit_text(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "its process ended"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"its process exited with status {status}"


def _describe(fate: Fate, last: Position) -> str:
    if fate.raised:
        return f"raised {fate.summary}"
    if fate.member is None:
        return "never reported to the leader"
    if fate.returned:
        return "returned"
    where = fate.unseen or _whereabouts(fate.position, last)
    if fate.lost:
        return f"{fate.end}; {where}"
    return f"is stopped (SIGSTOP); {where}" if fate.stopped else where


def _whereabouts(here: Position, last: Position) -> str:
    """Where a rank is, beside the last collective that any rank has entered."""
    if here.entered < last.entered:
        return f"never entered {last.name} #{last.entered}"
    if here.inside:
        return f"waits in {here.name} #{here.entered}"
    return f"outside of collectives, {here.entered} done"


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _ask_for_stack(fate: Fate) -> bool:
    """Whether the rank's process will write its stack; a thread of this one is looked at here."""
    if fate.member is None or fate.stopped:
        return False
    if fate.member.pid == os.getpid():
        frame = sys._current_frames().get(fate.member.thread)
        calls = traceback.extract_stack(frame)[::-1] if frame else []
        lines = [f'  File "{c.filename}", line {c.lineno} in {c.name}' for c in calls]
        fate.stack = _trim("\n".join(["Current thread", *lines]))
        return False
    try:
        os.kill(fate.member.pid, STACK_SIGNAL)
    except ProcessLookupError:
        return False
    return True


def _await_stacks(directory: Path, fates: Sequence[Fate]) -> None:
    """Read the stacks of all ranks side by side: one that does not answer hides no other's."""
    before: dict[int, str] = {}
    deadline = time.monotonic() + _STACK_SECONDS
    while fates and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        for fate in fates:
            path = stack_path(directory, fate.rank)
            text = path.read_text(errors="replace") if path.exists() else ""
            # Two equal readings: it is all there.
            if text.endswith("\n") and text == before.get(fate.rank):
                threads = map(_trim, text.split("\n\n"))
                fate.stack = "\n\n".join(filter(None, threads))
            before[fate.rank] = text
        fates = [fate for fate in fates if not fate.stack]
    for fate in fates:
        fate.stack = "(it did not answer: blocked outside of Python)"


def _trim(thread: str) -> str:
    """One thread's calls without the harness's own, which are the same in every rank."""
    header, *frames = thread.splitlines()
    if any(_IDLE_THREAD.search(frame) for frame in frames):
        return ""
    own = [i for i, frame in enumerate(frames) if _OWN_FRAME.search(frame)]
    frames = frames[: own[0]] if own else frames
    title = "main thread" if header.startswith("Current thread") else "another thread"
    return "\n".join([f"{title} (innermost call first):", *frames]) if frames else ""


def _tail(path: Path) -> str:
    """The last lines of a file, however large it is; nothing where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
        return _last_lines(file.read(_OUTPUT_BYTES).decode(errors="replace"))


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_OUTPUT_LINES:])


def _evidence(what: str, texts: dict[int, str]) -> list[str]:
    """A section for each different text, naming every rank that it is true of."""
    lines = []
    for text in dict.fromkeys(texts.values()):
        ranks = [str(rank) for rank, other in texts.items() if other == text]
        lines += _section(f"{what} of rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}", text)
    return lines


def _section(title: str, text: str) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in text.rstrip().splitlines())] if text else []
