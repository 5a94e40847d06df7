"""Simulate 1,000 ranks that borrow leases, a tenth of which are lost, for several rules of lending.

python -m suites.benchmarks.leases_simulated [--ranks 1000] [--seed 0] [--write docs/scaling.md]

Each rank is a thread that sleeps as long as its units take. The leader is a thread with the book
and the ledger of `disteval.leases`, and takes messages as they come. Half of the lost ranks die,
which the leader sees at once; the others freeze, which it sees when they are silent too long.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from disteval.coverage import Certificate
from disteval.leases import Book, Lease, Ledger
from disteval.report.files import write_file

SAMPLES = 1_000_000
UNITS = 100_000
SECONDS = 30.0
"""How long the evaluation takes if no rank is ever idle or lost."""

TARGET = 2.0
TIMEOUT = 10.0
LOST = 0.1
SLOW, SLOWER = 0.05, 4.0
"""The share of ranks that are slow, and how many times as long they take."""

HEADING = "## Leases on 1,000 simulated ranks"


class Fixed(Book):
    """Lends leases of a fixed number of units, and no copies."""

    units = 10

    def _size(self, _rank: int) -> int:
        return self.units

    def _copy(self, _now: float) -> None:
        return None


class Small(Fixed):
    """Lends leases of few units."""

    units = 2


class Guided(Fixed):
    """Lends half of a rank's share of what is left, however long that takes it."""

    ranks = 1000

    def _size(self, _rank: int) -> int:
        return max(1, -(-self._unlent // (2 * self.ranks)))


class WithoutCopies(Book):
    """Lends as `Book` does, but no copies."""

    def _copy(self, _now: float) -> None:
        return None


RULES: dict[str, type[Book]] = {
    f"fixed leases, {Fixed.units} units": Fixed,
    f"fixed leases, {Small.units} units": Small,
    "guided": Guided,
    "guided, limited in seconds": WithoutCopies,
    "and copies at the end (`Book`)": Book,
}


@dataclass
class Plan:
    """What was drawn for the ranks, the same for every rule.

    Attributes:
        unit_seconds: How long a unit takes on each rank.
        lost_at: When each rank is lost, in seconds; infinity for most.
        freezes: Whether each rank freezes when it is lost; others die.
    """

    unit_seconds: list[float]
    lost_at: list[float]
    freezes: list[bool]

    @property
    def ideal(self) -> float:
        """The seconds that all units take if no rank is ever idle before it is lost."""
        low, high = 0.0, 100 * SECONDS
        for _ in range(60):
            middle = (low + high) / 2
            done = sum(
                min(middle, lost) / seconds
                for seconds, lost in zip(self.unit_seconds, self.lost_at, strict=True)
            )
            low, high = (middle, high) if done < UNITS else (low, middle)
        return high


def draw(ranks: int, seed: int) -> Plan:
    """Draw log-normal speeds, some slow ranks, and the moments at which ranks are lost."""
    drawn = np.random.default_rng(seed)
    seconds = drawn.lognormal(sigma=0.3, size=ranks)
    seconds[drawn.random(ranks) < SLOW] *= SLOWER
    seconds *= SECONDS / UNITS * (1 / seconds).sum()
    lost_at = np.full(ranks, np.inf)
    lost = drawn.choice(ranks, int(LOST * ranks), replace=False)
    lost_at[lost] = drawn.uniform(0, SECONDS, len(lost))
    return Plan(seconds.tolist(), lost_at.tolist(), (drawn.random(ranks) < 0.5).tolist())


class Message(NamedTuple):
    """What a rank tells the leader: it asks, has done units, has finished a lease, or was lost."""

    rank: int
    number: int | None = None
    done: int = 0
    is_finished: bool = False
    is_lost: bool = False


@dataclass
class Leader:
    """The leader, which runs in a thread of its own.

    Attributes:
        book: The leases.
        ledger: Where they are committed.
        begin: When the evaluation began.
        lent: A queue for each rank, to which its leases are put, and None at the end.
        inbox: The messages of ranks.
        waiting: The ranks that asked for a lease and have not got one.
        timeline: How many ranks worked, at some moments.
        cpu: The seconds of CPU of the thread.
        seconds: How long it all took.
    """

    book: Book
    ledger: Ledger
    begin: float
    lent: list[queue.SimpleQueue[Lease | None]]
    inbox: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)
    waiting: dict[int, None] = field(default_factory=dict)
    timeline: list[tuple[float, int]] = field(default_factory=list)
    cpu: float = 0.0
    seconds: float = 0.0

    def run(self) -> None:
        """Take messages until all units are committed."""
        begin, noted = time.thread_time(), -1.0
        while not self.book.is_done:
            with self.ledger.together():
                self._turn()
            now = self._now()
            if now > noted + 0.1:
                noted = now
                self.timeline.append((now, len(self.book._held)))
        self.cpu, self.seconds = time.thread_time() - begin, self._now()
        for box in self.lent:
            box.put(None)

    def _turn(self) -> None:
        try:
            message = self.inbox.get(timeout=0.05)
            while True:
                self._take(message)
                message = self.inbox.get_nowait()
        except queue.Empty:
            pass
        now = self._now()
        self.book.expire(now)
        for rank in [*self.waiting]:
            lease = self.book.ask(rank, now)
            if lease is None:
                break
            del self.waiting[rank]
            self.lent[rank].put(lease)

    def _take(self, message: Message) -> None:
        now = self._now()
        if message.is_lost:
            self.book.lose(message.rank, now)
            return
        if message.number is None:
            self.waiting[message.rank] = None
        elif not message.is_finished:
            self.book.progress(message.rank, now, message.done)
        elif self.book.commit(message.rank, message.number, now):
            lease = self.book.lease(message.number)
            self.ledger.commit(lease, 1, bytes(200), Certificate(10 * lease.units, 0), {})

    def _now(self) -> float:
        return time.monotonic() - self.begin


@dataclass
class Outcome:
    """What one rule has come to.

    Attributes:
        name: The rule.
        seconds: How long the evaluation took.
        ideal: How long it takes if no rank is ever idle.
        idle: The share of the living ranks' time in which they had nothing to do.
        repeated: The share of the units that were evaluated once more than needed, or lost.
        leases: How many leases were committed.
        cpu: The leader's seconds of CPU for each of them.
        timeline: How many ranks worked, at some moments.
    """

    name: str
    seconds: float
    ideal: float
    idle: float
    repeated: float
    leases: int
    cpu: float
    timeline: list[tuple[float, int]]


def simulate(name: str, rule: type[Book], plan: Plan, folder: Path, seed: int) -> Outcome:
    """Let all ranks borrow until all units are committed."""
    ranks = range(len(plan.unit_seconds))
    ledger = Ledger(folder, {})
    lent: list[queue.SimpleQueue[Lease | None]] = [queue.SimpleQueue() for _ in ranks]
    book = rule(UNITS, target_seconds=TARGET, timeout=TIMEOUT)
    leader = Leader(book, ledger, time.monotonic() + 1.0, lent)
    worked, evaluated = [0.0] * len(ranks), [0] * len(ranks)

    def rank_(rank: int) -> None:
        drawn, seconds = np.random.default_rng([seed, rank]), plan.unit_seconds[rank]
        time.sleep(max(0.0, leader.begin - time.monotonic()))
        while True:
            leader.inbox.put(Message(rank))
            lease = lent[rank].get()
            if lease is None:
                return
            begin = time.monotonic()
            for done in range(lease.units):
                time.sleep(seconds * drawn.lognormal(-0.03, 0.25))
                if leader._now() >= plan.lost_at[rank]:
                    if not plan.freezes[rank]:
                        leader.inbox.put(Message(rank, is_lost=True))
                    return
                evaluated[rank] += 1
                if not book.is_wanted(lease.number):  # as the leader's message would tell it
                    break
                leader.inbox.put(Message(rank, lease.number, done + 1, done + 1 == lease.units))
            worked[rank] += time.monotonic() - begin

    threads = [threading.Thread(target=rank_, args=[rank], daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    leader.run()
    for thread in threads:
        thread.join()
    leases = sum(each.leases for each in ledger.committed())
    ledger.close()
    living = [rank for rank in ranks if plan.lost_at[rank] == np.inf]
    return Outcome(
        name,
        leader.seconds,
        plan.ideal,
        1 - sum(min(1.0, worked[rank] / leader.seconds) for rank in living) / len(living),
        sum(evaluated) / UNITS - 1,
        leases,
        leader.cpu / leases,
        leader.timeline,
    )


def static(plan: Plan) -> Outcome:
    """Return what equal shares come to, without any loss: with one, they never end."""
    shares = [UNITS / len(plan.unit_seconds) * seconds for seconds in plan.unit_seconds]
    longest = max(shares)
    idle = 1 - statistics.mean(shares) / longest
    moments = np.linspace(0, longest, 100).tolist()
    timeline = [(at, sum(share > at for share in shares)) for at in moments]
    return Outcome("static shares, and no rank lost", longest, SECONDS, idle, 0, 0, 0, timeline)


def page(outcomes: list[Outcome], ranks: int, load: float) -> Iterator[str]:
    """Yield the parts of the page's section."""
    yield HEADING
    yield f"""
`python -m suites.benchmarks.leases_simulated --write docs/scaling.md` writes this section and its
picture: {ranks:,} threads sleep as long as their units take, and a leader with the book and the
ledger of `disteval.leases` lends to them ({os.cpu_count()} cores, load {load:.1f} before).
There are {SAMPLES:,} samples in {UNITS:,} units, and all ranks together need {SECONDS:.0f} seconds
for them. Speeds are log-normal, {SLOW:.0%} of the ranks are {SLOWER:.0f} times slower, and
{LOST:.0%} are lost at random moments: half of them die, and half freeze, which shows after
{TIMEOUT:.0f} seconds of silence. A lease is {TARGET:.0f} seconds long where that is limited.

| how units are dealt | seconds | of the ideal | idle | repeated | leases | leader, µs per lease |
|---|---:|---:|---:|---:|---:|---:|"""
    for found in outcomes:
        leader = f"{found.leases} | {found.cpu * 1e6:.0f}" if found.leases else "– | –"
        yield (
            f"| {found.name} | {found.seconds:.1f} | {found.seconds / found.ideal:.2f} | "
            f"{found.idle:.1%} | {found.repeated:.1%} | {leader} |"
        )
    yield """
*Of the ideal* is the time against that of ranks which are never idle before they are lost. *Idle*
is the share of the living ranks' time in which they had nothing to do, most of it at the end;
*repeated* is the share of units that were evaluated more than once, because a rank was lost with a
part of its lease, or because it worked on a copy and was not the first. The leader's time is that
of its thread: the book, the ledger on the disk, and the messages of ranks with their progress, but
no sockets. A static evaluation ends with an error when a rank is lost, so its row has no losses.

![Ranks that work against time](leases.svg)"""


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Draw how many ranks work, against time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds", ylabel="ranks that work")
    for found in outcomes:
        at, working = zip(*found.timeline[:: max(1, len(found.timeline) // 120)], strict=True)
        axes.plot([*at, found.seconds], [*working, 0], label=found.name)
    axes.legend(loc="upper right")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Simulate each rule, and print or write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    plan = draw(options.ranks, options.seed)
    outcomes = [static(plan)]
    for name, rule in RULES.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(simulate(name, rule, plan, Path(folder), options.seed))
    lines = "\n".join(page(outcomes, options.ranks, load)) + "\n"
    if options.write is None:
        print(lines)
        return
    others = options.write.read_text().partition(HEADING)[0]
    write_file("--write", options.write, others.rstrip() + "\n\n" + lines)
    plot(outcomes, options.write.with_name("leases.svg"))


if __name__ == "__main__":
    main()
