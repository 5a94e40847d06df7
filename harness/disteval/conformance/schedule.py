"""Which rules of a check run at the same time, and the threads that run them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from disteval.conformance.faults import WORLD_SIZES
from disteval.conformance.rules import Rule
from disteval.worlds.launchers import Launcher
from disteval.worlds.launchers.base import ProcessLauncher
from disteval.worlds.launchers.threads import ThreadsLauncher

_WORLDS_AT_ONCE = 2
_STOP_SECONDS = 10.0
_LOST_WORLDS_AT_ONCE = 4  # their ranks mostly wait


@dataclass(frozen=True)
class Job:
    """Rules that are tried one after another at one world size.

    Attributes:
        size: The world size.
        rules: The rules, in order.
        loses_ranks: Whether each of the rules needs a world of its own, which it ends.
    """

    size: int
    rules: Sequence[Rule]
    loses_ranks: bool = False


@dataclass(frozen=True)
class Lane:
    """Jobs of one kind, of which so many may run at the same time."""

    jobs: Sequence[Job]
    at_once: int = 1


def plan(
    rules: Sequence[Rule], sizes: Sequence[int], launcher: Launcher | None
) -> list[list[Lane]]:
    """Divide a check into phases, which follow each other, and lanes, which run side by side.

    Args:
        rules: All rules.
        sizes: All world sizes.
        launcher: What starts the ranks; None where somebody else has started them.
    """
    threads = isinstance(launcher, ThreadsLauncher)
    if launcher is None or not (threads or isinstance(launcher, ProcessLauncher)):
        # There may be no room for the ranks of two worlds.
        return [[Lane([Job(size, rules) for size in sizes])]]
    lost = [r for r in rules if r.loses_ranks]
    # Ranks that are threads share what such a rule measures or sets with those of other worlds.
    alone = [r for r in rules if r.process_wide and threads]
    worlds, lost_worlds = [], []
    for size in sorted(sizes, reverse=True):  # the largest takes longest
        here = lost if size in WORLD_SIZES else []
        if others := [r for r in rules if r not in here and r not in alone]:
            worlds.append(Job(size, others))
        lost_worlds += [Job(size, [r], loses_ranks=True) for r in here]
    lanes = [Lane(worlds, _WORLDS_AT_ONCE), Lane(lost_worlds, _LOST_WORLDS_AT_ONCE)]
    phases = [[lane for lane in lanes if lane.jobs]]
    return [*phases, [Lane([Job(size, alone) for size in sizes])]] if alone else phases


def to_repeat(phases: Sequence[Sequence[Lane]], failed: set[tuple[int, str]]) -> Lane:
    """Return the jobs whose ranks were lost too late while the worlds of other jobs were busy.

    Args:
        phases: What has run.
        failed: The world size and the number of each rule that failed.
    """
    jobs = [
        job
        for lanes in phases
        if len(lanes) > 1
        for lane in lanes
        for job in lane.jobs
        if job.loses_ranks and (job.size, job.rules[0].number) in failed
    ]
    return Lane(jobs, _LOST_WORLDS_AT_ONCE)


def run_side_by_side(
    lanes: Sequence[Lane], run: Callable[[Job], None], stop: Callable[[], None]
) -> None:
    """Run the jobs of all lanes, in threads unless one follows another, and wait for them.

    Args:
        lanes: The jobs; those of one lane begin in their order.
        run: Runs one job.
        stop: Makes every job end soon; called when one has raised, and on Ctrl-C.

    Raises:
        BaseException: What the first job that raised has raised; the others are left unfinished.
    """
    if len(lanes) == 1 and min(lanes[0].at_once, len(lanes[0].jobs)) <= 1:
        for job in lanes[0].jobs:
            run(job)
        return
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work(jobs: SimpleQueue[Job | None]) -> None:
        try:
            for job in iter(jobs.get, None):
                run(job)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threads = []
    for lane in lanes:
        count = min(lane.at_once, len(lane.jobs))
        jobs: SimpleQueue[Job | None] = SimpleQueue()
        for entry in [*lane.jobs, *[None] * count]:
            jobs.put(entry)
        # Daemons: Ctrl-C ends the process, however long a job still waits for its ranks.
        threads += [threading.Thread(target=work, args=(jobs,), daemon=True) for _ in range(count)]
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
