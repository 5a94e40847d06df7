"""The runner, which checks every rule at every world size and reports the results."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from disteval.conformance.attempts import Try, settle, try_rule
from disteval.conformance.results import DEFAULT_TIMEOUT, Report, Result
from disteval.conformance.rule import RULES, Rule
from disteval.conformance.rules import (  # noqa: F401 - they register themselves
    broadcast,
    callers,
    copies,
    counting,
    errors,
    gather,
    groups,
    identity,
    lost,
    sequences,
    template,
)
from disteval.conformance.schedule import Job, plan, run_side_by_side
from disteval.conformance.world import BackendWorlds, JudgedWorld
from disteval.contract import BaseDistBackend
from disteval.errors import LibraryMissingError, UsageError, WorldError
from disteval.registry import get_backend_class
from disteval.traces import TraceFolder
from disteval.world import World
from disteval.world.environment import refuse_worlds_of_each
from disteval.world.launchers import get_launcher

DEFAULT_WORLD_SIZES = (1, 2, 3, 5)


def select_rules(patterns: Sequence[str] = ()) -> list[Rule]:
    """Return the rules whose number matches a pattern, such as ``2.*``; without patterns, all.

    Raises:
        UsageError: A pattern matches no rule.
    """
    rules = sorted(RULES, key=lambda rule: [int(part) for part in rule.number.split(".")])
    for pattern in patterns:
        if not any(fnmatch.fnmatch(rule.number, pattern) for rule in rules):
            known = ", ".join(rule.number for rule in rules)
            raise UsageError(f"no rule matches {pattern!r}; the known ones are: {known}")
    chosen = patterns or ("*",)
    return [rule for rule in rules if any(fnmatch.fnmatch(rule.number, p) for p in chosen)]


def check_backend(
    backend: str | type[BaseDistBackend],
    world_sizes: Iterable[int] = DEFAULT_WORLD_SIZES,
    *,
    rules: Sequence[Rule] | None = None,
    launcher: str | None = None,
    examples: int = 100,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    led: JudgedWorld | None = None,
    trace: TraceFolder | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Check a backend against every rule, in worlds that this call starts.

    Args:
        backend: A registered name, ``module:Class``, or a class that the ranks can import.
        world_sizes: The numbers of ranks to try.
        rules: The rules to try; None means all.
        launcher: How to start the ranks; None means the launcher that the class names.
        examples: Drawn examples for each rule and world size.
        seed: The seed of drawing; the same seed draws the same examples.
        timeout: Seconds that one example may take.
        led: Ranks that a launcher has started already; None starts ranks.
        trace: Where the worlds that are started record a trace; None records none.
        on_result: A function that is called with each result as soon as it is known, in any thread.
            A failure that is in doubt is tried again at the end, and then reported twice.

    Raises:
        HarnessError: The backend can't be imported, or a world of it could not be started.
    """
    if led is None and launcher is None:
        refuse_worlds_of_each("Run the check once, without that launcher, or with disteval check.")
    begin = time.monotonic()
    cls = get_backend_class(backend) if isinstance(backend, str) else backend
    name = backend if isinstance(backend, str) else cls.__name__
    report = Report(name, cls, seed, examples, timeout, launcher)
    chosen = select_rules() if rules is None else list(rules)
    sizes = list(world_sizes)
    worlds = partial(
        BackendWorlds,
        backend,
        led=led,
        launcher=launcher,
        timeout=timeout,
        # They compute nothing, and with as many threads at each size they can be forked off the
        # same processes.
        threads=None if "OMP_NUM_THREADS" in os.environ else 1,
        trace=trace,
        sizes=sizes,
    )
    found = None if led else get_launcher(launcher or cls.launcher)
    phases = plan(chosen, sizes, found)
    with found.kept() if found else nullcontext():
        check = _Check(report, worlds, on_result)
        for jobs in phases:
            run_side_by_side(jobs, check.run if len(jobs) == 1 else check.run_beside, check.stop)
        # Beside others they may not have started for what rule 1.4 forbids, such as a fixed port.
        for job in check.not_started:
            check.run(job)
        check.settle_doubts()
    report.rules = [check.results[size, rule.number] for size in sizes for rule in chosen]
    report.seconds = time.monotonic() - begin
    return report


@dataclass
class _Check:
    """One check of one backend, whose jobs may run in several threads."""

    report: Report
    worlds: Callable[..., BackendWorlds]
    on_result: Callable[[Result], None] | None
    results: dict[tuple[int, str], Result] = field(default_factory=dict)
    doubts: dict[tuple[int, str], tuple[Rule, Try]] = field(default_factory=dict)
    not_started: list[Job] = field(default_factory=list)
    started: list[World] = field(default_factory=list)
    given_up: str = ""
    stopped: bool = False

    def run_beside(self, job: Job) -> None:
        """Run a job beside others, or note it in `not_started` if no world of it starts."""
        try:
            self.run(job)
        except WorldError as error:
            missing = isinstance(error.common, LibraryMissingError)
            if missing or self.stopped or (job.size, job.rules[0].number) in self.results:
                raise
            self.not_started.append(job)

    def run(self, job: Job) -> None:
        """Check the backend against the rules of one job, at its world size."""
        in_a_row = 0
        if self.stopped:
            return
        with self.worlds(job.size, started=self._add_world) as worlds:
            declared = worlds.cls.capabilities.why_not("multi_rank") if job.size > 1 else ""
            for rule in job.rules:
                if declared or (self.given_up and not self._was_tried(job.size, rule)):
                    outcome = "unsupported" if declared else "error"
                    this = Try(Result.of(rule, job.size, outcome, declared or self.given_up))
                else:
                    this = try_rule(rule, worlds, self.report.examples, self.report.seed)
                    no_start = this.result.outcome == "error" and this.doubt
                    in_a_row = in_a_row + 1 if worlds.is_lost or no_start else 0
                    reason = _reason_to_give_up(in_a_row, job.size, worlds.can_be_lost)
                    self.given_up = self.given_up or reason
                if self.stopped:  # what ended the ranks was not the backend
                    return
                if this.doubt and worlds.can_be_lost:
                    self.doubts[job.size, rule.number] = rule, this
                    self._take(this.result, replay=False)
                else:
                    self._take(settle(this, None))

    def _take(self, result: Result, replay: bool = True) -> None:
        """Take a result; one that may be settled otherwise has no command yet that replays it."""
        tried = result.outcome in ("failed", "error") and result.message != self.given_up
        if tried and replay:
            result.replay = self.report.replay(result)
        self.results[result.world_size, result.id] = result
        if self.on_result is not None:
            self.on_result(result)

    def _was_tried(self, size: int, rule: Rule) -> bool:
        result = self.results.get((size, rule.number))
        return result is not None and result.message != self.given_up

    def settle_doubts(self) -> None:
        """Try each rule again whose failure is in doubt, alone and in new ranks.

        A rule that fails again at one world size is not tried again at the larger ones.
        """
        examples, seed, broken = self.report.examples, self.report.seed, set()
        for (size, number), (rule, first) in sorted(self.doubts.items()):
            if self.stopped:
                return
            result = first.result
            if number not in broken:
                with self.worlds(size, started=self._add_world) as worlds:
                    result = settle(first, partial(try_rule, rule, worlds, examples, seed))
            if result.outcome == "failed":
                broken.add(number)
            self._take(result)

    def _add_world(self, world: World) -> None:
        self.started.append(world)
        if self.stopped:
            self.stop()

    def stop(self) -> None:
        """Terminate the ranks of every world that this check has started."""
        self.stopped = True
        for world in self.started:
            if not world.attached:
                world.terminate()


def _reason_to_give_up(count: int, size: int, others: bool) -> str:
    """Return why no more rules are tried after that many lost worlds in a row; empty to go on."""
    # Ranks that a launcher has started already can be lost only once.
    if count < (2 if others else 1):
        return ""
    rules = f"{count} rules in a row" if others else "one rule"
    return f"not run: {rules} ended in a lost world or a timeout at world size {size}"
