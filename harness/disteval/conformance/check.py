"""One check of a backend: every rule at every world size, and what was in doubt once more.

Read it from the top: `check_backend` plans the jobs, `_Check` runs them, and `try_rule` tries one
rule at one world size.
"""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from queue import SimpleQueue
from typing import NamedTuple

from disteval.conformance.bench import Bench
from disteval.conformance.causes import Seen, failure_of, likely_cause, plain_cause
from disteval.conformance.results import DEFAULT_TIMEOUT, CheckReport, RuleResult
from disteval.conformance.rule import RULES, BrokenRuleError, LostWorld, NotApplicableError, Rule
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
from disteval.conformance.world import JudgedWorld
from disteval.contract import BaseDistBackend
from disteval.errors import LibraryMissingError, UsageError, WorldError
from disteval.host import available_cores
from disteval.judging.retry import Try, doubt, settle
from disteval.judging.session import Session
from disteval.registry import get_backend_class
from disteval.traces import TraceFolder
from disteval.world.launchers import Launcher, ProcessLauncher, ThreadsLauncher, get_launcher
from disteval.world.postmortem import first_line
from disteval.world.ray import RayLauncher, joined_ray
from disteval.world.world import refuse_worlds_of_each

DEFAULT_WORLD_SIZES = (1, 2, 3, 4, 5)
_AT_ONCE = 12  # one world of each size, and some whose ranks are lost, which mostly wait
_RANKS_PER_CORE = 16  # of light work: a rank that has imported torch has taken 1.4 s of a core
_STOP_SECONDS = 10.0
_PATIENCE = 2.0  # at the second try, for a machine that is too busy for the bounds of the first


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
    on_result: Callable[[RuleResult], None] | None = None,
) -> CheckReport:
    """Check a backend against every rule, in worlds that this call starts.

    Args:
        backend: A registered name, ``module:Class``, or a class that the ranks can import.
        world_sizes: The numbers of ranks to try.
        rules: The rules to try; None means all.
        launcher: How to start the ranks; None means the launcher that the class names.
        examples: Drawn examples for each rule and world size, one of eight of them
            where the smallest world of several ranks tries them all.
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
    cls = get_backend_class(backend)
    name = backend if isinstance(backend, str) else cls.__name__
    report = CheckReport(name, cls, seed, examples, timeout, launcher)
    chosen, sizes = select_rules() if rules is None else list(rules), list(world_sizes)
    # They compute nothing, and with as many threads at each size they can be forked off the same
    # processes.
    threads = None if "OMP_NUM_THREADS" in os.environ else 1

    def new_bench(size: int) -> Bench:
        session = Session(
            backend, JudgedWorld, launcher=launcher, timeout=timeout, threads=threads, trace=trace,
            led=led,
        )  # fmt: skip
        return Bench(session, size, examples, seed, sizes=sizes)

    check = _Check(new_bench, report, on_result)
    found = None if led else get_launcher(launcher or cls.launcher)
    threading.Thread(target=_draw, args=(chosen, examples, seed), daemon=True).start()
    with joined_ray() if isinstance(found, RayLauncher) else nullcontext():
        for jobs in plan(chosen, sizes, found):
            check.run_side_by_side(jobs)
        # Beside others they may not have started for what rule 1.4 forbids, such as a fixed port.
        for job in check.not_started:
            check.run(job)
        check.settle_doubts()
    report.rules = [check.results[size, rule.number] for size in sizes for rule in chosen]
    report.seconds = time.monotonic() - begin
    return report


def _draw(rules: Sequence[Rule], examples: int, seed: int) -> None:
    """Draw the examples of rules while ranks start, for which this process would only wait."""
    if names := [rule.draws for rule in rules if rule.draws]:
        from disteval.conformance import drawing  # its import takes half a second

        for name in names:
            drawing.draw(getattr(drawing, name), examples, seed)


class CheckJob(NamedTuple):
    """Rules that are tried one after another at one world size, on ranks of their own.

    A late one begins when one job of its phase is left that is not late.
    """

    size: int
    rules: Sequence[Rule]
    late: bool = False


def plan(
    rules: Sequence[Rule], sizes: Sequence[int], launcher: Launcher | None
) -> list[list[CheckJob]]:
    """Divide a check into phases, which follow each other; the jobs of one run side by side.

    Rules that lose ranks begin when one job of the others is left: their worlds mostly wait, and
    their bounds leave no time for those of several jobs, which need all cores.

    ``launcher`` starts the ranks; it is None where somebody else has started them.
    """
    threads = isinstance(launcher, ThreadsLauncher)
    if not (threads or isinstance(launcher, ProcessLauncher)):
        # There may be no room for the ranks of two worlds.
        return [[CheckJob(size, rules)] for size in sizes]
    # Ranks that are threads share what such a rule measures or sets with those of other worlds.
    alone = [r for r in rules if r.process_wide and threads]
    jobs, losing = [], []
    for size in sorted(sizes, reverse=True):  # the largest takes longest
        lost_here = [r for r in rules if r.loses_ranks and size in lost.WORLD_SIZES]
        losing += [CheckJob(size, [r], late=True) for r in lost_here]
        if others := [r for r in rules if r not in lost_here and r not in alone]:
            others.sort(key=lambda rule: rule.starts_many)  # large objects were sent by then
            jobs.append(CheckJob(size, others))
    # The last ones wait longest, and where a loss is noticed ranks wait least.
    losing.sort(key=lambda job: job.rules[0].number, reverse=True)
    losing.sort(key=lambda job: job.rules[0].capability == "detects_lost_ranks")
    return [jobs + losing, *([CheckJob(size, alone)] for size in sizes if alone)]


@dataclass
class _Check:
    """One check of one backend, whose jobs may run in several threads."""

    new_bench: Callable[[int], Bench]
    report: CheckReport
    on_result: Callable[[RuleResult], None] | None
    results: dict[tuple[int, str], RuleResult] = field(default_factory=dict)
    doubts: dict[tuple[int, str], tuple[Rule, Try[RuleResult]]] = field(default_factory=dict)
    not_started: list[CheckJob] = field(default_factory=list)
    sessions: list[Session[JudgedWorld]] = field(default_factory=list)
    given_up: str = ""
    stopped: bool = False

    def run_side_by_side(self, jobs: Sequence[CheckJob]) -> None:
        """Run jobs, in threads if there are several; they begin in their order.

        As many run at once as the cores of this host suffice for their ranks. When a job raises,
        and on Ctrl-C, the others end soon, and the exception goes on.
        """
        if len(jobs) == 1:
            self.run(jobs[0])
            return
        largest = sorted((job.size for job in jobs), reverse=True)[:_AT_ONCE]
        most = _RANKS_PER_CORE * available_cores()
        room = threading.Semaphore(max(1, sum(ranks <= most for ranks in accumulate(largest))))
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def work(job: CheckJob) -> None:
            raised: BaseException | None = None
            try:
                with room:
                    self.run(job)
            except WorldError as error:
                missing = isinstance(error.common, LibraryMissingError)
                if missing or self.stopped or (job.size, job.rules[0].number) in self.results:
                    raised = error
                else:  # beside others it may not start for what rule 1.4 forbids, as a fixed port
                    self.not_started.append(job)
            except BaseException as error:
                raised = error
            ended.put(raised)

        # Daemons: Ctrl-C ends the process, however long a job still waits for its ranks.
        threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
        now = [thread for thread, job in zip(threads, jobs, strict=True) if not job.late]
        late = [thread for thread in threads if thread not in now]
        try:
            for thread in now:
                thread.start()
            for count in range(len(threads)):
                if count == max(0, len(now) - 1):
                    for thread in late:
                        thread.start()
                if error := ended.get():
                    raise error
        except BaseException:
            self.stopped = True
            for session in self.sessions:
                session.stop()  # a world that is starting ends as soon as it is there
            deadline = time.monotonic() + _STOP_SECONDS
            for thread in filter(threading.Thread.is_alive, threads):
                thread.join(max(0.0, deadline - time.monotonic()))
            raise

    def run(self, job: CheckJob) -> None:
        """Check the backend against the rules of one job, at its world size."""
        size, in_a_row = job.size, 0
        declared = self.report.single_rank if size > 1 else ""
        bench = self.new_bench(size)
        with bench.session as session:
            self.sessions.append(session)
            for rule in job.rules:
                if self.stopped:  # what ends the ranks now is not the backend
                    return
                if declared or self.given_up:
                    outcome = "unsupported" if declared else "error"
                    self._take(RuleResult.of(rule, size, outcome, declared or self.given_up), False)
                    continue
                this = try_rule(rule, bench)
                if self.stopped:
                    return
                no_start = this.result.outcome == "error" and this.doubt
                # What a backend has declared is no sign that the next rule can't be tried.
                is_lost = session.is_lost(size) and this.result.outcome != "unsupported"
                in_a_row = in_a_row + 1 if is_lost or no_start else 0
                # Ranks that a launcher has started already can be lost only once.
                if in_a_row >= (2 if session.can_start else 1) and not self.given_up:
                    rules = f"{in_a_row} rules in a row" if session.can_start else "one rule"
                    lost_at = f"ended in a lost world or a timeout at world size {size}"
                    self.given_up = f"not run: {rules} {lost_at}"
                if this.doubt and session.can_start:
                    self.doubts[size, rule.number] = rule, this
                    self._take(this.result, False)
                else:
                    self._take(_settled(rule, bench, this, None) if this.doubt else this.result)

    def _take(self, result: RuleResult, replay: bool = True) -> None:
        """Take a result; one that was not tried, or may be settled otherwise, has no replay."""
        if replay and result.outcome in ("failed", "error"):
            result.replay = self.report.replay(result)
        self.results[result.world_size, result.id] = result
        if self.on_result is not None:
            self.on_result(result)

    def settle_doubts(self) -> None:
        """Try each rule again whose failure is in doubt, alone and in new ranks.

        A rule that fails again at one world size is not tried again at the larger ones.
        """
        broken = set()
        for (size, number), (rule, first) in sorted(self.doubts.items()):
            result = first.result
            if number not in broken:
                bench = self.new_bench(size)
                with bench.session:
                    result = _settled(rule, bench, first, partial(try_rule, rule, bench))
            if result.outcome == "failed":
                broken.add(number)
            self._take(result)


def check_rule(rule: Rule, bench: Bench) -> RuleResult:
    """Check a backend against one rule, twice if a failure is in doubt at the first try.

    Args:
        rule: The rule.
        bench: The ranks, which may be lost.
    """

    def again() -> Try[RuleResult]:
        bench.session.close()
        return try_rule(rule, replace(bench, patience=_PATIENCE))

    first = try_rule(rule, bench)
    if not first.doubt:
        return first.result
    return _settled(rule, bench, first, again if bench.session.can_start else None)


def _settled(
    rule: Rule, bench: Bench, first: Try[RuleResult], again: Callable[[], Try[RuleResult]] | None
) -> RuleResult:
    result, why = settle(first, again)
    no = _declared_no(rule, bench)
    if why and no and result.outcome == "failed":  # what works by chance alone is rightly a no
        return RuleResult.of(rule, result.world_size, "unsupported", no)
    return result.not_judged(why) if why else result


def try_rule(rule: Rule, bench: Bench) -> Try[RuleResult]:
    """Try a rule once, see `check_rule`.

    Raises:
        WorldError: A world of the backend does not start, and no rank was lost.
    """
    bench = replace(bench)  # on which nothing was tried yet
    result, said = RuleResult.of(rule, bench.world_size), ""
    begin = time.monotonic()
    try:
        if not issubclass(bench.cls, rule.of):
            raise NotApplicableError(f"the backend is not a subclass of {rule.of.__name__}")
        rule.check(bench)
    except NotApplicableError as reason:
        result.outcome, result.message = "unsupported", str(reason)
    except (BrokenRuleError, LostWorld) as error:
        result.outcome, result.message = "failed", error.what
        result.counterexample = error.counterexample
        result.evidence = error.error.evidence if error.error else []
        seen = Seen(bench.cls, bench.world_size, error.error, error.differences, bench.wrong)
        result.failure = failure_of(seen, error.what)
        result.cause = likely_cause(seen, rule.cause)
        result.usually = "" if result.cause else rule.usually
        result.cause = result.cause or plain_cause(seen)
        said = first_line(error.what) if error.doubt else ""
    except WorldError as error:  # a world did not start
        if not (rule.loses_ranks or error.lost):
            raise
        result.outcome, result.message = "error", str(error)
        said = doubt(error) if error.lost else ""
    else:
        result.message = bench.left_out
        if not bench.ran:
            result.outcome, result.message = "error", "the rule's check tried no example"
    result.examples, result.seconds = bench.ran, time.monotonic() - begin
    result.observed = "\n".join(bench.observed)
    no = _declared_no(rule, bench)
    if no:  # which excuses a failure, and is wrong if this holds
        if result.outcome == "failed":
            result = replace(
                RuleResult.of(rule, result.world_size, "unsupported", no),
                examples=result.examples, seconds=result.seconds, observed=result.observed,
            )  # fmt: skip
        elif result.outcome == "passed" and result.world_size > 1:  # alone there is no other rank
            result.outcome = "failed"
            result.message = f"{rule.capability} is declared a no ({no}), but it works"
            said = "it worked" if bench.session.can_start else ""
    failed = result.outcome in ("failed", "error")
    return Try(result, said if failed else "", failed=result.outcome == "failed")


def _declared_no(rule: Rule, bench: Bench) -> str:
    """Return why a backend declares that it can't do what a rule asks for; empty if it can."""
    return bench.cls.capabilities.why_not(rule.capability) if rule.capability else ""
