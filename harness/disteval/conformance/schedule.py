"""Which rules of a check run at the same time, and the threads that run them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from queue import SimpleQueue

from disteval.conformance.rule import Rule
from disteval.conformance.rules.lost import WORLD_SIZES
from disteval.host import available_cores
from disteval.world.launchers import Launcher, ProcessLauncher, ThreadsLauncher

_AT_ONCE = 10  # one world of each size, and some whose ranks are lost, which mostly wait
_RANKS_PER_CORE = 16  # of light work: a rank that has imported torch has taken 1.4 s of a core
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Job:
    """Rules that are tried one after another at one world size.

    Attributes:
        size: The world size.
        rules: The rules, in order.
        loses_ranks: Whether the rule needs a world of its own, which it ends.
    """

    size: int
    rules: Sequence[Rule]
    loses_ranks: bool = False


def plan(rules: Sequence[Rule], sizes: Sequence[int], launcher: Launcher | None) -> list[list[Job]]:
    """Divide a check into phases, which follow each other; the jobs of one run side by side.

    Rules that lose ranks have a phase of their own: their worlds mostly wait, and their bounds
    leave no time for those of other rules, which need all cores.

    ``launcher`` starts the ranks; it is None where somebody else has started them.
    """
    threads = isinstance(launcher, ThreadsLauncher)
    if not (threads or isinstance(launcher, ProcessLauncher)):
        # There may be no room for the ranks of two worlds.
        return [[Job(size, rules)] for size in sizes]
    # Ranks that are threads share what such a rule measures or sets with those of other worlds.
    alone = [r for r in rules if r.process_wide and threads]
    jobs, losing = [], []
    for size in sorted(sizes, reverse=True):  # the largest takes longest
        lost = [r for r in rules if r.loses_ranks and size in WORLD_SIZES]
        losing += [Job(size, [r], loses_ranks=True) for r in lost]
        if others := [r for r in rules if r not in lost and r not in alone]:
            jobs.append(Job(size, others))
    losing.sort(key=lambda job: job.rules[0].number, reverse=True)  # the last ones wait longest
    return [jobs, losing, *([Job(size, alone)] for size in sizes if alone)]


def _how_many_at_once(jobs: Sequence[Job]) -> int:
    """Return how many jobs run side by side: the cores of this host suffice for their ranks."""
    most = _RANKS_PER_CORE * available_cores()
    largest = sorted((job.size for job in jobs), reverse=True)[:_AT_ONCE]
    return max(1, sum(ranks <= most for ranks in accumulate(largest)))


def run_side_by_side(
    jobs: Sequence[Job], run: Callable[[Job], None], stop: Callable[[], None]
) -> None:
    """Run jobs, in threads if there are several; they begin in their order.

    When a job raises, and on Ctrl-C, ``stop`` makes the others end soon, and the exception goes on.
    """
    if len(jobs) == 1:
        run(jobs[0])
        return
    count = _how_many_at_once(jobs)
    waiting: SimpleQueue[Job | None] = SimpleQueue()
    for job in [*jobs, *[None] * count]:
        waiting.put(job)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            for job in iter(waiting.get, None):
                run(job)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    # Daemons: Ctrl-C ends the process, however long a job still waits for its ranks.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            if error := ended.get():
                raise error
    except BaseException:
        stop()
        # A job that is starting a world ends it as soon as it is there.
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise
