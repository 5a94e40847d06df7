"""The post-mortem: what each rank was doing when a world failed, in words that a person can use."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from disteval.text import visible
from disteval.traces import Recorder
from disteval.worlds.channel.messages import Hello, Reply
from disteval.worlds.channel.outcome import Outcome
from disteval.worlds.collective_log import NOWHERE, Position, read_position
from disteval.worlds.rank_files import STACK_SIGNAL, Kind, rank_file, this_machine
from disteval.worlds.torch_calls import Call, describe_last, describe_parting

_STACK_SECONDS = 2.0
_POLL_SECONDS = 0.02
# Below these frames of a stack lies this library, not the function that it was asked to run.
_OWN_FRAME = re.compile(r"worlds.rank\.py\", line \d+ in (carry_out|run)$")
# Threads that wait in every rank alike: for orders, for the end of Ray's node, for Ray's garbage.
_IDLE_THREAD = re.compile(
    r"(inbox\.py\", line \d+ in _watch|ray.node\.py\", .* in watch|gc_collect_manager\.py\", .*"
    r"|worlds.process\.py\", .* in _end_with|traces.recorder\.py\", line \d+ in _run)$"
)
PARTED = "  first parted in torch.distributed: "
"""What the line begins with that names the call of torch.distributed at which ranks parted."""

LAST = "  last in torch.distributed: "
"""What the line begins with that names the last calls, where those of a lost rank are not known."""

_OUTPUT_LINES = 20
_OUTPUT_BYTES = 1 << 16
_LINE_LENGTH = 1000


@dataclass
class RankStatus:
    """What is known of one rank of a world that failed."""

    rank: int
    hello: Hello | None = None
    reply: Reply | None = None
    end: str = ""  # how its process ended, or why its connection closed
    unseen: str = ""  # why its files could not be read
    stopped: bool = False  # by a signal
    position: Position = NOWHERE
    calls: Sequence[Call] | None = None  # of torch.distributed; None if they are not known
    stack: str = ""  # of all its threads, innermost call first
    output: str = ""

    @property
    def raised(self) -> str:
        """The type and message of the exception that it raised, or an empty text."""
        return self.reply.message if self.reply else ""


def examine(directory: Path, ranks: Sequence[RankStatus]) -> None:
    """Read the collective logs, stacks and outputs of ranks, before any process is terminated.

    Ranks of other machines are left out, since their process ids are those of strangers here.

    Args:
        directory: The control directory, for ranks that have not said which directory they use.
        ranks: The ranks.
    """
    ranks = [s for s in ranks if s.hello is None or s.hello.machine in ("", this_machine())]
    for status in ranks:
        status.position = read_position(_file(directory, status, "collectives"))
        status.output = _tail(_file(directory, status, "out"))
        status.stopped = status.hello is not None and _is_stopped(status.hello.pid)
    pending = [s for s in ranks if s.hello and not (s.end or s.reply)]
    asked = [status for status in pending if _ask_for_stack(status)]
    _await_stacks(directory, asked)


def report(headline: str, ranks: Sequence[RankStatus], launcher_log: str = "") -> str:
    """Return the post-mortem as text: the headline, a line for each rank, then the evidence.

    Where all ranks have raised alike, the headline says what, and nothing repeats it. Control
    characters in the text of ranks are shown as escapes.
    """
    last = max(ranks, key=lambda s: s.position.entered).position
    shared = raised_alike(ranks)
    lines = [headline]
    # There may be a thousand of these; the others are described one by one.
    missing = [s.rank for s in ranks if s.hello is None]
    if missing:
        lines.append(f"  {list_ranks(missing, len(ranks))} never reported to the leader")
    there = [] if shared else [s for s in ranks if s.hello]
    lines += [f"  {_host(ranks, [s])}rank {s.rank}: {_describe(s, last)}" for s in there]
    calls = {s.rank: s.calls for s in ranks if s.calls is not None}
    if parting := describe_parting(calls):
        lines.append(f"{PARTED}{parting}")
    elif len(calls) < len(ranks) and (latest := describe_last(calls)):
        lines.append(f"{LAST}{latest}")
    traces = {s.rank: s.reply.trace.rstrip() for s in ranks if s.reply}
    lines += _evidence("traceback", {r: t.removesuffix(shared) for r, t in traces.items()}, ranks)
    lines += _evidence("stack", {s.rank: s.stack for s in ranks}, ranks)
    lines += _evidence("end of the output", {s.rank: s.output for s in ranks}, ranks)
    lines += _section("end of the launcher's output", _last_lines(launcher_log))
    return visible("\n".join(lines))


def describe_failure(
    what: str, outcome: Outcome, ranks: Sequence[RankStatus], timeout: float
) -> str:
    """Return the headline of the report on an order that not every rank has carried out."""
    size = len(ranks)
    raised = [f"rank {s.rank} raised {first_line(s.raised)}" for s in ranks if s.raised]
    if shared := raised_alike(ranks):
        return f"the order to {what} failed on {list_ranks(range(size), size)}: {shared}"
    if outcome.lost:
        first, *others = outcome.lost
        happened = f"rank {first} was lost ({ranks[first].end})"
        # A launcher that loses one rank ends the others, so the first is to blame.
        happened += f"; and then {list_ranks(others, size)}" if others else ""
    elif raised:
        happened = "; ".join(raised)
    else:
        happened = f"no progress for {timeout:g} s on {list_ranks(outcome.late(), size)}"
    return f"{happened}; the order was to {what}"


def record_failure(recorder: Recorder, headline: str, ranks: Sequence[RankStatus]) -> None:
    """Record in a trace that an order failed, and what each rank was doing."""
    last = max(ranks, key=lambda s: s.position.entered).position
    doing = {f"rank {s.rank}": visible(_describe(s, last)) for s in ranks if s.hello}
    now = time.monotonic_ns()
    recorder.add("failure", visible(headline), now, now, **doing)
    recorder.flush()


def raised_alike(ranks: Sequence[RankStatus]) -> str:
    """Return the exception that all ranks have raised; an empty text if they differ."""
    return ranks[0].raised if len({status.raised for status in ranks}) == 1 else ""


def list_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Return the numbers of ranks in words."""
    if 1 < world_size == len(ranks):
        return f"all {world_size} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def exit_text(status: int | None) -> str:
    """Return the exit status of a process in words."""
    if status is None:
        return "its process ended"
    if status < 0:
        with suppress(ValueError):  # a real-time signal has no name
            return f"killed by {signal.Signals(-status).name}"
        return f"killed by signal {-status}"
    if status == 0 and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        return "its process ended, and how is not known because this process ignores SIGCHLD"
    return f"its process exited with status {status}"


def _describe(status: RankStatus, last: Position) -> str:
    if status.reply is not None:
        return f"raised {first_line(status.raised)}" if status.raised else "returned"
    where = status.unseen or _whereabouts(status.position, last)
    if status.end:
        return f"{status.end}; {where}"
    return f"is stopped (SIGSTOP); {where}" if status.stopped else where


def _whereabouts(here: Position, last: Position) -> str:
    """Compare a rank's position with the last collective that any rank has entered."""
    if here.entered < last.entered:
        return f"never entered {last.name} #{last.entered}"
    if here.inside:
        return f"waits in {here.name} #{here.entered}"
    return f"outside of collectives, {here.entered} done"


def _file(directory: Path, status: RankStatus, kind: Kind) -> Path:
    own = status.hello.directory if status.hello else ""
    return rank_file(Path(own) if own else directory, status.rank, kind)


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _ask_for_stack(status: RankStatus) -> bool:
    """Return whether the rank's process will write its stack; read a thread's stack right here."""
    if status.hello is None or status.stopped:
        return False
    if status.hello.pid == os.getpid():
        frame = sys._current_frames().get(status.hello.thread)
        calls = traceback.extract_stack(frame)[::-1] if frame else []
        lines = [f'  File "{c.filename}", line {c.lineno} in {c.name}' for c in calls]
        status.stack = _trim("\n".join(["Current thread", *lines]))
        return False
    try:
        os.kill(status.hello.pid, STACK_SIGNAL)
    except (ProcessLookupError, PermissionError):  # it has ended, and its number may be another's
        return False
    return True


def _await_stacks(directory: Path, ranks: Sequence[RankStatus]) -> None:
    """Read the stacks of all ranks side by side, so that a deaf rank hides no other's."""
    before: dict[int, str] = {}
    deadline = time.monotonic() + _STACK_SECONDS
    while ranks and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        for status in ranks:
            path = _file(directory, status, "stack")
            text = path.read_text(errors="replace") if path.exists() else ""
            # Two equal readings: the stack is complete.
            if text.endswith("\n") and text == before.get(status.rank):
                threads = map(_trim, text.split("\n\n"))
                status.stack = "\n\n".join(filter(None, threads))
            before[status.rank] = text
        ranks = [status for status in ranks if not status.stack]
    for status in ranks:
        why = f"it is blocked outside of Python, or handles {STACK_SIGNAL.name} itself"
        status.stack = f"(the rank wrote no stack: {why})"


def _trim(thread: str) -> str:
    """Return one thread's calls without this library's own, which are the same in every rank."""
    header, *frames = thread.splitlines()
    if any(_IDLE_THREAD.search(frame) for frame in frames):
        return ""
    own = [i for i, frame in enumerate(frames) if _OWN_FRAME.search(frame)]
    frames = frames[: own[0]] if own else frames
    title = "main thread" if header.startswith("Current thread") else "another thread"
    return "\n".join([f"{title} (innermost call first):", *frames]) if frames else ""


def _tail(path: Path) -> str:
    """Return the last lines of a file, however large it is; nothing if there is no such file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
        return _last_lines(file.read(_OUTPUT_BYTES).decode(errors="replace"))


def _last_lines(text: str) -> str:
    return "\n".join(map(_cut, text.splitlines()[-_OUTPUT_LINES:]))


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} … (cut)"


def _evidence(what: str, texts: dict[int, str], ranks: Sequence[RankStatus]) -> list[str]:
    """Return a section for each different text, with the ranks that share it in its title."""
    lines = []
    for text in dict.fromkeys(texts.values()):
        sharing = [rank for rank, other in texts.items() if other == text]
        host = _host(ranks, [status for status in ranks if status.rank in sharing])
        lines += _section(f"{host}{what} of {list_ranks(sharing, len(ranks))}", text)
    return lines


def _host(ranks: Sequence[RankStatus], some: Sequence[RankStatus]) -> str:
    """Return the names of the hosts of some ranks; nothing if all ranks are on one host."""
    if len({status.hello.machine for status in ranks if status.hello}) < 2:
        return ""
    return ", ".join(dict.fromkeys(s.hello.host for s in some if s.hello)) + ": "


def _section(title: str, text: str) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in text.rstrip().splitlines())] if text else []


def first_line(text: str) -> str:
    """Return the first line of a message, cut where it is very long."""
    return _cut(text.partition("\n")[0])
