"""The post-mortem: what each rank was doing when a world failed, in words that a person can use."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disteval.host import process_state, this_machine
from disteval.text import visible, with_sections
from disteval.traces import Recorder
from disteval.traces.torch_calls import (
    Parting,
    TorchCall,
    describe_last,
    find_parting,
    recorded_calls,
)
from disteval.world.channel.leader import Channel
from disteval.world.channel.messages import Examine, Frame, Hello, Reply
from disteval.world.collective_log import NOWHERE, CallPosition, read_position
from disteval.world.control_directory import STACK_SIGNAL, Kind, rank_file

_STACK_SECONDS = 2.0
_POLL_SECONDS = 0.02
_MACHINES_SECONDS = 15.0  # for the ranks of all other machines
_ANSWER_SECONDS = 5.0  # of one rank; its threads may be kept from running
_CALLS_SECONDS = 2.0
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')  # as faulthandler writes it
# Below these calls of a stack lies this library, not the function that it was asked to run.
_OWN = {("world", "rank.py", "carry_out"), ("world", "rank.py", "run")}
# What threads do that wait in every rank alike: for orders, for the end of Ray's node.
_IDLE = {
    ("channel", "link.py", "_watch"), ("ray", "launcher.py", "watch"),
    ("world", "attached.py", "_end_with"),
}  # fmt: skip
_IDLE_FILES = {"gc_collect_manager.py"}  # of Ray

_OUTPUT_LINES = 20
_OUTPUT_BYTES = 1 << 16
_LINE_LENGTH = 1000


class Thread(NamedTuple):
    """The calls in which a thread of a rank is.

    Attributes:
        name: ``main thread`` or ``another thread``.
        frames: The calls, the innermost first.
    """

    name: str
    frames: Sequence[Frame]

    def __str__(self) -> str:
        """Return the calls as lines."""
        lines = [f'  File "{f.file}", line {f.line or "?"} in {f.function}' for f in self.frames]
        return "\n".join([f"{self.name} (innermost call first):", *lines])


class End(str):
    """How a process or a thread ended, in words.

    Attributes:
        signal: The name of the signal that ended a process; nothing without one.
        by_itself: Whether it has exited, rather than been ended.
    """

    signal: str = ""
    by_itself: bool = False


@dataclass
class RankStatus:
    """What is known of one rank of a world that failed.

    Attributes:
        rank: Its number.
        hello: Its process and host; None if it never reported to the leader.
        reply: What it answered to the order; None if it did not.
        end: How its process ended, why its connection closed, or why a world that goes on without
            lost ranks has given it up; nothing if it is there.
        unseen: Why its files could not be read.
        stopped: Whether a signal has stopped its process.
        position: Where it is among the collectives of its backend.
        calls: Its calls of torch.distributed; None if they are not known.
        stack: The calls of its threads, the main thread first.
        no_stack: Why there is no stack, if it was asked for one.
        output: The last lines of its output.
    """

    rank: int
    hello: Hello | None = None
    reply: Reply | None = None
    end: str = ""
    unseen: str = ""
    stopped: bool = False
    position: CallPosition = NOWHERE
    calls: Sequence[TorchCall] | None = None
    stack: Sequence[Thread] = ()
    no_stack: str = ""
    output: str = ""

    @property
    def host(self) -> str:
        """The name of its host; nothing if it never reported."""
        return self.hello.host if self.hello else ""

    @property
    def raised(self) -> str:
        """The type and message of the exception that it raised, or an empty text."""
        return self.reply.message if self.reply else ""

    @property
    def error(self) -> Exception | None:
        """The exception that it raised, as far as it could be pickled; None without one."""
        return self.reply.exception if self.reply else None

    @property
    def how(self) -> str:
        """How it was lost, or whether it returned, is stopped or runs, in one line."""
        if self.reply is not None:
            return f"raised {first_line(self.raised)}" if self.raised else "returned"
        return self.end or ("is stopped (SIGSTOP)" if self.stopped else "runs")

    @property
    def returned(self) -> bool:
        """Whether it has carried out its order."""
        return self.reply is not None and not self.raised

    @property
    def signal(self) -> str:
        """The name of the signal that ended its process, such as SIGKILL; nothing without one."""
        return self.end.signal if isinstance(self.end, End) else ""

    @property
    def frames(self) -> Sequence[Frame]:
        """The calls in which it raised, or is if it did not; the innermost first."""
        if self.reply is not None:
            return self.reply.frames
        return self.stack[0].frames if self.stack else ()

    @property
    def post_mortem(self) -> PostMortem:
        """All that could be seen of it: its traceback, its stack, the end of its output."""
        return PostMortem(f"rank {self.rank}: {self.how}", [self])


@dataclass(frozen=True)
class PostMortem:
    """What is known of a world that failed.

    Attributes:
        happened: What happened, in a few words.
        ranks: What is known of each rank.
        order: What the ranks were to do; nothing if they had not all started.
        waited: The seconds for which no rank made progress, if that is what ended the order.
        ended_itself: Whether the process that was lost first had exited, rather than been ended.
        launcher_log: The output of the launcher.
    """

    happened: str
    ranks: Sequence[RankStatus]
    order: str = ""
    waited: float = 0.0
    ended_itself: bool = False
    launcher_log: str = ""

    @property
    def headline(self) -> str:
        """What happened, and the order."""
        if self.order and (shared := raised_alike(self.ranks)):
            everybody = list_ranks(range(len(self.ranks)), len(self.ranks))
            return f"the order to {self.order} failed on {everybody}: {shared}"
        return f"{self.happened}; the order was to {self.order}" if self.order else self.happened

    @property
    def parting(self) -> Parting | None:
        """The call of torch.distributed at which ranks parted; None if none is known."""
        return find_parting(self._calls)

    @property
    def last(self) -> CallPosition:
        """The place of a rank that has entered as many collectives as any."""
        return max(self.ranks, key=lambda s: s.position.entered).position

    @property
    def waiting(self) -> list[RankStatus]:
        """The ranks that run, and wait in a collective or have not entered the last one."""
        return [
            s for s in self.ranks
            if s.hello and not (s.reply or s.end or s.unseen or s.stopped)
            and (s.position.inside or s.position.entered < self.last.entered)
        ]  # fmt: skip

    @property
    def text_of_calls(self) -> str:
        """Where ranks parted in torch.distributed, or the last calls if a rank's are not known."""
        if parting := self.parting:
            return f"first parted in torch.distributed: {parting.sentence}"
        latest = "" if len(self._calls) == len(self.ranks) else describe_last(self._calls)
        return f"last in torch.distributed: {latest}" if latest else ""

    @property
    def _calls(self) -> dict[int, Sequence[TorchCall]]:
        return {s.rank: s.calls for s in self.ranks if s.calls is not None}

    @property
    def summary(self) -> str:
        """The headline, and a line for each rank; all control characters are shown as escapes.

        Where all ranks have raised alike, the headline says what, and nothing repeats it.
        """
        ranks, last = self.ranks, self.last
        lines = [self.headline]
        # There may be a thousand of these; the others are described one by one.
        if missing := [s.rank for s in ranks if s.hello is None]:
            lines.append(f"  {list_ranks(missing, len(ranks))} never reported to the leader")
        there = [] if raised_alike(ranks) else [s for s in ranks if s.hello]
        lines += [f"  {_host(ranks, [s])}rank {s.rank}: {_describe(s, last)}" for s in there]
        lines += [f"  {told}" for told in [self.text_of_calls] if told]
        return visible("\n".join(lines))

    @property
    def evidence(self) -> list[tuple[str, str]]:
        """The title and the text of each traceback, stack and output, each different one once."""
        ranks, shared = self.ranks, raised_alike(self.ranks)
        raised = {s.rank: s.reply.trace.rstrip().removesuffix(shared) for s in ranks if s.reply}
        stacks = {s.rank: "\n\n".join(map(str, s.stack)) or s.no_stack for s in ranks}
        found = [
            *_shared("traceback", raised, ranks),
            *_shared("stack", stacks, ranks),
            *_shared("end of the output", {s.rank: s.output for s in ranks}, ranks),
            ("end of the launcher's output", _lines_of(self.launcher_log)),
        ]
        return [(visible(title), visible(text.rstrip())) for title, text in found if text.strip()]

    def __str__(self) -> str:
        """Return the summary, then the evidence."""
        return with_sections(self.summary, self.evidence)


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
        status.output = last_lines(_file(directory, status, "out"))
        status.stopped = status.hello is not None and process_state(status.hello.pid) in ("T", "t")
    pending = [s for s in ranks if s.hello and not (s.end or s.reply)]
    asked = [status for status in pending if _ask_for_stack(status)]
    _await_stacks(directory, asked)


def examine_elsewhere(channel: Channel, ranks: Sequence[RankStatus]) -> None:
    """Have the ranks of each other machine examined by one of them; the next one if that is silent.

    Each machine is asked at the same time. No process of another machine is signalled from here.
    """
    machines: dict[str, list[RankStatus]] = {}
    for status in ranks:
        if status.hello is not None and status.hello.machine not in ("", this_machine()):
            machines.setdefault(status.hello.machine, []).append(status)
    asking = {name: [s.rank for s in there if not s.end] for name, there in machines.items()}
    deadline = time.monotonic() + _MACHINES_SECONDS
    while any(asking.values()) and time.monotonic() < deadline:
        turn = {found.pop(0): name for name, found in asking.items() if found}
        questions = {rank: Examine(machines[name]) for rank, name in turn.items()}
        for rank, answer in channel.examine(questions, _ANSWER_SECONDS).items():
            for status, seen in zip(machines.pop(turn[rank]), answer.ranks, strict=True):
                vars(status).update(vars(seen))
            del asking[turn[rank]]
    for status in [status for there in machines.values() for status in there]:
        status.unseen = "no rank of its host could be asked what it was doing"


def ask_for_calls(channel: Channel, ranks: Sequence[RankStatus]) -> None:
    """Have each rank that runs tell its calls of torch.distributed, also one that hangs in one."""
    running = [s for s in ranks if s.hello is not None and not (s.end or s.stopped)]
    here = os.getpid(), this_machine()
    inside = [s for s in running if s.hello and (s.hello.pid, s.hello.machine) == here]
    if len(inside) == 1:  # the ranks of this process, if they are threads, share one record
        inside[0].calls = recorded_calls()
    asked = {s.rank: Examine(()) for s in running if s not in inside}
    for rank, answer in channel.examine(asked, _CALLS_SECONDS).items():
        ranks[rank].calls = answer.calls


def of_order(
    what: str, lost: Sequence[int], ranks: Sequence[RankStatus], timeout: float, log: str
) -> PostMortem:
    """Return the post-mortem of an order that not every rank has carried out.

    Args:
        what: The order, in a few words.
        lost: The ranks that were lost, in the order in which that was noticed.
        ranks: What is known of each rank.
        timeout: The seconds that ranks may make no progress.
        log: The output of the launcher.
    """
    raised = [f"rank {s.rank} raised {first_line(s.raised)}" for s in ranks if s.raised]
    waited, how = 0.0, ""
    if lost:
        first, *others = lost
        how = ranks[first].end
        happened = f"rank {first} was lost ({how})"
        # A launcher that loses one rank ends the others, so the first is to blame.
        happened += f"; and then {list_ranks(others, len(ranks))}" if others else ""
    elif raised:
        happened = "; ".join(raised)
    else:
        waited = timeout
        late = [status.rank for status in ranks if status.reply is None]
        happened = f"no progress for {timeout:g} s on {list_ranks(late, len(ranks))}"
    return PostMortem(happened, ranks, what, waited, ended_itself(how), log)


def record_failure(recorder: Recorder, found: PostMortem) -> None:
    """Record in a trace that an order failed, and what each rank was doing."""
    last = found.last
    doing = {f"rank {s.rank}": visible(_describe(s, last)) for s in found.ranks if s.hello}
    now = time.monotonic_ns()
    recorder.add("failure", visible(found.headline), now, now, **doing)
    recorder.flush()


def raised_alike(ranks: Sequence[RankStatus]) -> str:
    """Return the exception that all ranks have raised; an empty text if they differ."""
    return ranks[0].raised if len({status.raised for status in ranks}) == 1 else ""


def list_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Return the numbers of ranks in words."""
    if 1 < world_size == len(ranks):
        return f"all {world_size} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def ended_itself(how: str) -> bool:
    """Return whether a launcher knows of a rank that nobody has ended it."""
    return isinstance(how, End) and how.by_itself


def exit_text(status: int | None) -> End:
    """Return the exit status of a process in words."""
    if status is None:
        return End("its process ended")
    if status < 0:
        name = f"signal {-status}"
        with suppress(ValueError):  # a real-time signal has no name
            name = signal.Signals(-status).name
        end = End(f"killed by {name}")
        end.signal = name
        return end
    if status == 0 and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        return End("its process ended, and how is not known because this process ignores SIGCHLD")
    end = End(f"its process exited with status {status}")
    end.by_itself = True
    return end


def _describe(status: RankStatus, last: CallPosition) -> str:
    if status.reply is not None:
        return status.how
    where = status.unseen or _whereabouts(status.position, last)
    return f"{status.how}; {where}" if status.end or status.stopped else where


def _whereabouts(here: CallPosition, last: CallPosition) -> str:
    """Compare a rank's position with the last collective that any rank has entered."""
    if here.entered < last.entered:
        return f"never entered {last.name} #{last.entered}"
    if here.inside:
        return f"waits in {here.name} #{here.entered}"
    return f"outside of collectives, {here.entered} done"


def _file(directory: Path, status: RankStatus, kind: Kind) -> Path:
    own = status.hello.directory if status.hello else ""
    return rank_file(Path(own) if own else directory, status.rank, kind)


def _ask_for_stack(status: RankStatus) -> bool:
    """Return whether the rank's process will write its stack; read a thread's stack right here."""
    if status.hello is None or status.stopped:
        return False
    if status.hello.pid == os.getpid():
        frame = sys._current_frames().get(status.hello.thread)
        calls = traceback.extract_stack(frame)[::-1] if frame else []
        frames = [Frame(c.filename, c.lineno or 0, c.name) for c in calls]
        status.stack = _without_own([Thread("main thread", frames)])
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
                status.stack = _without_own(map(_thread, text.split("\n\n")))
            before[status.rank] = text
        ranks = [status for status in ranks if not status.stack]
    for status in ranks:
        why = f"it is blocked outside of Python, or handles {STACK_SIGNAL.name} itself"
        status.no_stack = f"(the rank wrote no stack: {why})"


def _thread(text: str) -> Thread:
    """Return a thread of which faulthandler has written the calls."""
    header, *lines = text.splitlines()
    found = [match.groups() for line in lines if (match := _FRAME.fullmatch(line))]
    frames = [Frame(file, int(line) if line.isdigit() else 0, name) for file, line, name in found]
    is_main = header.startswith("Current thread")
    return Thread("main thread" if is_main else "another thread", frames)


def _without_own(threads: Iterable[Thread]) -> list[Thread]:
    """Return threads without this library's own calls, which are the same in every rank."""
    found = []
    for thread in threads:
        calls = [(*Path(f.file).parts[-2:], f.function) for f in thread.frames]
        if any(call in _IDLE or call[-2] in _IDLE_FILES for call in calls):
            continue
        end = next((i for i, call in enumerate(calls) if call in _OWN), len(calls))
        if end:
            found.append(thread._replace(frames=thread.frames[:end]))
    return sorted(found, key=lambda thread: thread.name, reverse=True)  # the main thread first


def last_lines(path: Path) -> str:
    """Return the last lines of a file, however large it is; nothing if there is no such file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT_BYTES))
        return _lines_of(file.read(_OUTPUT_BYTES).decode(errors="replace"))


def _lines_of(text: str) -> str:
    return "\n".join(map(_cut, text.splitlines()[-_OUTPUT_LINES:]))


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} … (cut)"


def _shared(
    what: str, texts: Mapping[int, str], ranks: Sequence[RankStatus]
) -> Iterator[tuple[str, str]]:
    """Yield each different text, and a title that names the ranks that share it."""
    for text in dict.fromkeys(texts.values()):
        sharing = [rank for rank, other in texts.items() if other == text]
        host = _host(ranks, [status for status in ranks if status.rank in sharing])
        yield f"{host}{what} of {list_ranks(sharing, len(ranks))}", text


def _host(ranks: Sequence[RankStatus], some: Sequence[RankStatus]) -> str:
    """Return the names of the hosts of some ranks; nothing if all ranks are on one host."""
    if len({status.hello.machine for status in ranks if status.hello}) < 2:
        return ""
    return ", ".join(dict.fromkeys(s.hello.host for s in some if s.hello)) + ": "


def first_line(text: str) -> str:
    """Return the first line of a message, cut where it is very long."""
    return _cut(text.partition("\n")[0])
