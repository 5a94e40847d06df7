"""The runner, which checks every rule at every world size and reports the results."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from disteval.conformance.attempts import NO_OTHER_RANKS, judged_by, try_rule
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
from disteval.conformance.schedule import Job, lost_beside_others, plan, run_side_by_side
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
            A rule that failed in a way that may not recur is tried again at the end, and then
            reported twice.

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
        # Beside others they may only have been too slow.
        again = [job for job in lost_beside_others(phases) if check.may_hold_alone(job)]
        run_side_by_side(again, check.run, check.stop)
        check.try_again()
    report.rules = [check.results[size, rule.number] for size in sizes for rule in chosen]
    report.seconds = time.monotonic() - begin
    return report


class _Loss(NamedTuple):
    """A failure that may not recur, because ranks were lost or late: the loss in one line."""

    rule: Rule
    result: Result
    loss: str


@dataclass
class _Check:
    """One check of one backend, whose jobs may run in several threads."""

    report: Report
    worlds: Callable[..., BackendWorlds]
    on_result: Callable[[Result], None] | None
    results: dict[tuple[int, str], Result] = field(default_factory=dict)
    losses: dict[tuple[int, str], _Loss] = field(default_factory=dict)
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
        lost = 0
        if self.stopped:
            return
        with self.worlds(job.size, started=self._add_world) as worlds:
            declared = worlds.cls.capabilities.why_not("multi_rank") if job.size > 1 else ""
            for rule in job.rules:
                loss = ""
                if declared or (self.given_up and not self._was_tried(job.size, rule)):
                    outcome = "unsupported" if declared else "error"
                    result = Result.of(rule, job.size, outcome, declared or self.given_up)
                else:
                    result, loss = try_rule(rule, worlds, self.report.examples, self.report.seed)
                    lost = lost + 1 if worlds.is_lost else 0
                    reason = _reason_to_give_up(lost, job.size, worlds.can_be_lost)
                    self.given_up = self.given_up or reason
                if self.stopped:  # what ended the ranks was not the backend
                    return
                if loss and not worlds.can_be_lost:
                    result, loss = result.not_judged(loss, NO_OTHER_RANKS), ""
                self._take(rule, result, loss)

    def _take(self, rule: Rule, result: Result, loss: str) -> None:
        """Take a result of a first or a second try; a first loss waits for the second try."""
        key = result.world_size, rule.number
        first = self.losses.pop(key, None)
        if first is not None:
            result = judged_by(first.result, first.loss, result)
        elif loss:
            self.losses[key] = _Loss(rule, result, loss)
        tried = result.outcome in ("failed", "error") and result.message != self.given_up
        if tried and key not in self.losses:
            result.replay = self.report.replay(result)
        self.results[key] = result
        if self.on_result is not None:
            self.on_result(result)

    def _was_tried(self, size: int, rule: Rule) -> bool:
        result = self.results.get((size, rule.number))
        return result is not None and result.message != self.given_up

    def try_again(self) -> None:
        """Try each rule again that lost ranks or timed out, alone and on other ranks.

        A rule that fails again at one world size is not tried again at the larger ones.
        """
        broken = set()
        for (size, number), (rule, result, _) in sorted(self.losses.items()):
            if number in broken:
                del self.losses[size, number]
                self._take(rule, replace(result), "")
                continue
            self.run(Job(size, [rule]))
            if self.results[size, number].outcome == "failed":
                broken.add(number)

    def may_hold_alone(self, job: Job) -> bool:
        """Return whether a rule of a job was not kept, but no rank returned a wrong result."""
        results = [self.results[job.size, rule.number] for rule in job.rules]
        bad = [result for result in results if result.outcome in ("failed", "error")]
        return any(lost.RETURNED not in result.message for result in bad)

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


def _reason_to_give_up(lost: int, size: int, others: bool) -> str:
    """Return why no more rules are tried after that many lost worlds in a row; empty to go on."""
    # Ranks that a launcher has started already can be lost only once.
    if lost < (2 if others else 1):
        return ""
    rules = f"{lost} rules in a row" if others else "one rule"
    return f"not run: {rules} ended in a lost world or a timeout at world size {size}"
