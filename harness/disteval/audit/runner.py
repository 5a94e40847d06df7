"""The runner of an audit: it calls a function in case after case, and explains what is wrong."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from disteval.audit import broken
from disteval.audit.alone import counted_alone, may_be_alone
from disteval.audit.answers import LISTS, Answer, Result, first_result
from disteval.audit.case import Settings
from disteval.audit.cases import MANY_STEPS, cases, in_steps, not_held, parse
from disteval.audit.findings import DEFAULT_TIMEOUT, AuditReport, LoopFinding
from disteval.audit.jobs import told
from disteval.audit.judge import Judgement, Problem, changed_since, judge
from disteval.audit.notes import Notes
from disteval.audit.on_ranks import Target, name_of
from disteval.audit.planted import KNOWN, Planted
from disteval.audit.weights import Weights, dealt, explain, fetches_of, groups_of, measure
from disteval.audit.worlds import Calls
from disteval.errors import AuditError, UsageError, WorldError
from disteval.host import available_cores
from disteval.judging.report import replay
from disteval.judging.retry import Try, doubt, settle
from disteval.text import with_sections
from disteval.traces import TraceFolder
from disteval.world import World

DEFAULT_WORLD_SIZES = (1, 2, 3)
DEFAULT_SECONDS = 300.0
_SECONDS_OF_MANY = 3.0  # a call of the case with many batches may take
_MOST_PATIENCE = 6.0  # what is called once more may take so many times longer

_IMPORTABLE = re.compile(r"(?!__main__:)\w+(\.\w+)*:\w+")
_NO_CASE = "no case has what the function assumes; try other world sizes"
_IDS = (
    "the function is right where ids are positions, as they are not here; one that needs that must "
    "say so, with evaluate.assumes = ('numbered',)"
)


@dataclass(eq=False)
class Audit:
    """One audit of one function; see `audit` for the other arguments.

    Args:
        only: The one case to try; None stands for all.
        first: Whether to stop at the first case that is wrong.
        led: Ranks that somebody else has started; ``trace`` is where a trace is recorded.
        started_by: The command that has started these ranks, which a replay begins with.
        on_finding: Called with each finding as soon as it counts.
        on_step: Called after each step, with the steps that are done and all; a case is one or two.
    """

    target: Target
    world_sizes: Sequence[int] = DEFAULT_WORLD_SIZES
    backend: str = "torch_cpu"
    launcher: str | None = None
    tokens: bool = False
    seed: int = 0
    timeout: float = DEFAULT_TIMEOUT
    seconds: float = DEFAULT_SECONDS
    _: KW_ONLY
    only: Settings | None = None
    first: bool = False
    led: World | None = None
    trace: TraceFolder | None = None
    started_by: Sequence[str] = ()
    on_finding: Callable[[LoopFinding], None] = lambda _: None
    on_step: Callable[[int, int], None] = lambda _done, _total: None

    def __post_init__(self) -> None:
        self.report = AuditReport(name_of(self.target), self.backend)
        self._calls = Calls(
            self.target, self.backend, self.launcher, self.timeout, self.led, self.trace
        )
        self._references: dict[Planted, Result | None] = {}
        self._broke: list[tuple[Settings, broken.Broken]] = []
        self._earlier: dict[Settings, Judgement] = {}
        self._notes = Notes()
        self._misdealt: set[str] = set()  # results whose case had samples dealt twice or not at all
        self._perhaps_alone: dict[int, tuple[Settings, Planted]] = {}  # by world size
        self._told: list[LoopFinding] = []
        self._doubts: list[tuple[LoopFinding, Callable[[], Try[LoopFinding]], str]] = []

    def run(self) -> AuditReport:
        """Try the cases one after another, the smallest first, until the time is over."""
        begin = time.monotonic()
        report = self.report
        try:
            self._calls.session.world(self.only.world_size if self.only else min(self.world_sizes))
            report.assumes = self._calls.assumes
            sizes = sorted({*self.world_sizes})
            jobs = self._calls.has_merge
            if self.only and self.only.damage and not jobs:
                raise UsageError(
                    f"the case {self.only} is one of jobs that write parts, and {report.target} "
                    f"has no merge of parts; leave {self.only.damage}={self.only.job} out"
                )
            chosen = cases(sizes, report.assumes, jobs=jobs, tokens=self.tokens, seed=self.seed)
            steps = in_steps([self.only] if self.only else chosen)
            for done, (settings, again) in enumerate(steps):
                if again and report.cases.get(settings) != "right":
                    continue
                if self._takes_too_long(settings):
                    continue
                any_right = bool(report.counts["right"])
                disturbed = broken.expects(self._broke, settings, any_right)
                # Where earlier calls disturb later ones no other case can be judged.
                disturbed |= any(f.kind == "differs from call to call" for f in report.findings)
                if self._calls.session.is_lost() or disturbed:
                    report.cases[settings] = "skipped"
                elif time.monotonic() - begin > self.seconds:
                    report.cases[settings] = "out of time"
                else:
                    report.cases[settings] = self._try(settings, again)
                self._announce()
                self.on_step(done + 1, len(steps))
                enough = self.first and report.findings and not self._fails_everywhere
                if report.reason or enough:
                    break
            self._try_alone()
            self._settle()
        finally:
            self._calls.session.close()
            report.seconds = time.monotonic() - begin
        self._conclude()
        return report

    def _takes_too_long(self, settings: Settings) -> bool:
        """Return whether to leave out the case of many batches, and say so."""
        if settings.steps < MANY_STEPS or self.only:
            return False
        expected = self._calls.expected_seconds(settings)
        if expected < _SECONDS_OF_MANY:
            return False
        self.report.warnings.append(
            f"a call with {settings.steps} batches would take about {expected:.0f} s, so the case "
            f"{settings} was left out: a limit to the number of batches was not looked for; try it "
            f"with --case, and a longer --timeout"
        )
        return True

    def _announce(self) -> None:
        """Tell of new findings; not while the function may fail in every case, or in doubt."""
        in_doubt = [finding for finding, _, _ in self._doubts]
        for finding in self.report.findings:
            if finding not in [*self._told, *in_doubt] and not self._fails_everywhere:
                self._told.append(finding)
                self.on_finding(finding)

    def _settle(self) -> None:
        """Call once more where ranks were lost or late, which a busy machine may have caused.

        Calls may take longer then, by the number of processes that wait for a core.
        """
        report, doubts, self._doubts = self.report, self._doubts, []
        load = os.getloadavg()[0] / available_cores()
        self._calls.patience = min(max(1.0, load), _MOST_PATIENCE)
        for finding, again, said in doubts:
            if self._fails_everywhere and not self.only:
                return
            can_start = self._calls.session.can_start
            settled, why = settle(Try(finding, said), again if can_start else None)
            at = report.findings.index(finding)
            report.findings[at : at + 1] = [] if why else [settled]
            if why:
                report.cases[finding.settings] = "skipped"
                told = f"{finding.title}: {finding.sentence}; {why}; again: {finding.replay}"
                report.reason = report.reason or told
        self._announce()

    def _conclude(self) -> None:
        """Say why the function could not be judged, if it could not, and what to know besides."""
        report = self.report
        if self._fails_everywhere and not self.only:
            found = report.findings[0]
            said = found.sentence + broken.hint_of_samples(found.sentence)
            report.reason = f"the function fails in every case: {said}"
            report.details = with_sections(found.message, found.evidence) if found.message else ""
            report.findings.clear()
        report.warnings += self._notes.of_results()
        if not report.findings:
            report.warnings += self._notes.of_calls()
            missing = report.out_of_time(self.seconds) if report.cases else _NO_CASE
            report.reason = report.reason or self._notes.nothing_compared or missing
        if self.only and (missed := not_held(self.only, report.assumes)):
            report.warnings.append(f"the function assumes otherwise: {', and '.join(missed)}")

    def _try(self, settings: Settings, again: bool) -> str:
        """Call the function in one case, and return the outcome.

        Again means with other planted numbers, and with those of the first call once more.
        """
        outcome, judgement = self._call(settings, inverted=again)
        if not again:
            self._earlier[settings] = judgement
            return outcome
        if outcome == "right":
            outcome, judgement = self._call(settings)
        if outcome == "right" and (changed := changed_since(self._earlier[settings], judgement)):
            self._add(changed, settings)
            outcome = "wrong"
        for group in groups_of(settings.size, judgement.roundings.values()):
            if outcome == "right":
                outcome, _ = self._call(settings, probe=group)
        return outcome

    def _call(self, settings: Settings, **how: Any) -> tuple[str, Judgement]:
        """Call the function once, and return the outcome with the judgement of a right result."""
        planted = Planted(
            settings.size, settings.seed, tokens=settings.tokens, other_ids=settings.ids, **how
        )
        was_fresh = self._calls.is_fresh(settings.world_size)
        try:
            answers = self._calls(settings, planted)
        except WorldError as error:
            return self._broken(settings, planted, error, was_fresh), Judgement(planted)
        if any(answer.failed for answer in answers):
            return "right", Judgement(planted)
        judgement = judge(planted, answers, self._reference(settings, planted, answers))
        if judgement.refused:
            self.report.reason = f"{judgement.refused} (in the case {settings})"
            return "skipped", judgement
        if judgement.problems and settings.damage:
            self._add(told(judgement.problems[0], settings), settings)
            return "wrong", judgement
        if judgement.problems:
            self._explain(settings, judgement, was_fresh)
            return "wrong", judgement
        self._notes.add(settings, judgement)
        # With fewer samples a library may have filled the batches of all ranks with them.
        is_enough = settings.size >= settings.world_size * settings.batch_size > 1
        if is_enough and may_be_alone(settings, answers):
            self._perhaps_alone.setdefault(settings.world_size, (settings, planted))
        return "right", judgement

    def _try_alone(self) -> None:
        """Find out whether each rank counted all samples alone, where nothing else was wrong."""
        for settings, planted in self._perhaps_alone.values():
            judged = not (self.report.findings or self.report.reason)
            if not judged or self._notes.nothing_compared or self._calls.session.is_lost():
                return
            self._calls.hurry = True
            if found := counted_alone(self._calls, settings, planted, self._reference):
                self.report.cases[settings] = "wrong"
                self._add(found, settings)
                self._announce()

    def _reference(
        self, settings: Settings, planted: Planted, answers: Sequence[Answer]
    ) -> Result | None:
        """Return the result of one rank in one batch, if a name's truth is not known."""
        names = {name for answer in answers for name in answer.result or ()}
        # Ranks that somebody else has started are as many as they are.
        if names <= {*KNOWN, *LISTS} or (self.led and self.led.world_size > 1):
            return None
        if planted not in self._references:
            alone = replace(
                settings, world_size=1, batch_size=max(settings.size, 1), num_workers=0,
                shuffle=False, damage="",
            )  # fmt: skip
            answers = self._calls.attempt(alone, planted)
            self._references[planted] = first_result(answers) or None  # which is noted
        return self._references[planted]

    def _explain(self, settings: Settings, judgement: Judgement, was_fresh: bool) -> None:
        """Find out more about wrong results, unless a smaller case has shown the same."""
        known, planted = self.report.findings, judgement.planted
        if not known and not was_fresh:  # then it may be right in new processes, or the next time
            self._calls.renew(settings.world_size)
        if not known and self._is_right(settings, planted):
            for problem in judgement.problems:
                sentence = (
                    f"{problem.sentence}, and right in another call with the same samples, so the "
                    f"function keeps state or depends on chance"
                )
                found = Problem("differs from call to call", problem.name, sentence)
                self._add(found, settings)
            return
        fetched = [answer.fetched for answer in judgement.answers]
        named = [finding.name for finding in known]
        # Weights cost a call for each sample, so they are measured once for each name.
        was_dealt_once = all(len(each) == 1 for each in fetches_of(fetched, settings.size))
        # A sampler that repeats or drops samples explains no case in which each was dealt once.
        again = self._misdealt if was_dealt_once else set()
        unknown = [
            p
            for p in judgement.problems
            if p.name not in named or p.kind != "weighted wrongly" or p.name in again
        ]
        if any(fetched):
            names = {problem.name for problem in unknown}
            self._misdealt -= names
            self._misdealt |= set() if was_dealt_once else names
        weighed = [p.name for p in unknown if p.is_weighed]
        # A replay, which tries one case alone, may take its time.
        weights = measure(self._calls, settings, planted, weighed, hurry=not self.only)
        for problem in unknown:
            if problem.name in weights:
                fair, measured = planted.fair_weights(problem.name), weights[problem.name]
                explained = explain(self._calls, settings, problem, judgement, measured)
                self._add(explained, settings, planted, measured.weights, fair)
            else:
                self._add(dealt(problem, fetched, settings.size), settings, planted)

    def _is_right(self, settings: Settings, planted: Planted) -> bool:
        if self._calls.session.is_lost():
            return False
        answers = self._calls.attempt(settings, planted)
        return judge(planted, answers, self._reference(settings, planted, answers)).is_right

    def _broken(
        self, settings: Settings, planted: Planted, error: WorldError, was_fresh: bool
    ) -> str:
        """Report a call that raised, lost ranks or did not return."""
        found = broken.describe(error, settings.world_size)
        self._broke.append((settings, found))
        if found.kind == "hangs" and self._calls.hurry:
            return "skipped"  # a hang costs one time limit, and this call was given less
        self._calls.hurry |= found.kind == "hangs"
        sentence = found.sentence + broken.hint_of_time(found, was_fresh, settings.world_size)
        finding = self._add(Problem(found.kind, "", sentence), settings, planted, error=error)
        if finding is not None and (said := doubt(error)):

            def again() -> Try[LoopFinding]:
                self._calls.renew(settings.world_size)
                # What breaks in ranks that made a call before may need that one.
                calls = range(1 if was_fresh else 2)
                return Try(
                    finding, failed=not all(self._is_right(settings, planted) for _ in calls)
                )

            self._doubts.append((finding, again, said))
        return "wrong"

    @property
    def _fails_everywhere(self) -> bool:
        """Whether every call so far failed on a rank by itself, so that nothing can be judged."""
        found = self.report.findings
        if not found or not self._broke or self.report.counts["right"]:
            return False
        # What ranks do beside one that was lost says nothing.
        first, *later = (each for _, each in self._broke)
        alone = first.alone and all(each.alone or each.lost for each in later)
        return alone and all(finding.kind in ("crashes", "hangs") for finding in found)

    def _add(
        self,
        problem: Problem,
        settings: Settings,
        planted: Planted | None = None,
        weights: Sequence[float] | Weights = (),
        fair: Sequence[float] | Weights = (),
        error: WorldError | None = None,
    ) -> LoopFinding | None:
        """Add a finding, unless there is one of its kind and name, and return it."""
        report = self.report
        if any((f.kind, f.name) == problem[:2] for f in report.findings):
            return None
        sentence = problem.sentence
        if settings.ids and planted is not None:
            numbered = replace(settings, ids=False), replace(planted, other_ids=False)
            sentence += f"; {_IDS}" if self._is_right(*numbered) else ""
        finding = LoopFinding(
            title=problem.kind,
            where=str(settings),
            sentence=sentence,
            message=error.summary if error else "",
            evidence=error.evidence if error else (),
            replay=self._replay(settings, problem.kind == "hangs"),
            name=problem.name,
            settings=settings,
            weights=tuple(map(float, weights)),
            fair=tuple(map(float, fair)),
        )
        report.findings.append(finding)
        return finding

    def _replay(self, settings: Settings, hung: bool) -> str:
        """Return the command that tries one case alone; in Python for a function without a name."""
        target, timeout = self.report.target, self._calls.limit_of_replay(hung)
        options: dict[str, Any] = {"case": str(settings)}
        options |= {"backend": self.backend} if self.backend != "torch_cpu" else {}
        options |= {"launcher": self.launcher} if self.launcher else {}
        options |= {"timeout": timeout} if timeout != DEFAULT_TIMEOUT else {}
        if _IMPORTABLE.fullmatch(target):
            return replay("audit", target, options, self.started_by)
        settled = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"disteval.audit.audit(evaluate, {settled})"


def audit(
    evaluate: Target,
    world_sizes: Sequence[int] = DEFAULT_WORLD_SIZES,
    *,
    backend: str = "torch_cpu",
    launcher: str | None = None,
    tokens: bool = False,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    seconds: float = DEFAULT_SECONDS,
    case: str | None = None,
) -> AuditReport:
    """Audit an evaluation function, and raise what it does wrong; for tests of one's own.

    Args:
        evaluate: The function, which takes a `Case`; or ``module:function``.
        world_sizes: The numbers of ranks to try.
        backend: The backend whose group the function finds.
        launcher: How to start the ranks; None stands for the backend's own.
        tokens: Whether samples have tokens.
        seed: The seed of the drawn cases and of what is planted.
        timeout: The seconds that one call may take; the first one may take six times as many.
        seconds: The seconds after which no further case is tried.
        case: The one case to try, such as ``N=5,B=4,W=2``; None stands for all.

    Returns:
        The report of a function that is sound.

    Raises:
        AuditError: The function is wrong, or could not be judged; ``report`` has all findings.
        UsageError: ``case`` names no case.
        HarnessError: The ranks could not be started.
    """
    only = None if case is None else parse(case)
    sizes = world_sizes if only is None else (only.world_size,)
    report = Audit(
        evaluate, sizes, backend, launcher, tokens, seed, timeout, seconds, only=only
    ).run()
    if report.verdict != "sound":
        raise AuditError(report)
    return report
