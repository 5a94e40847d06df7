"""The runner of an audit: it calls a function in case after case, and explains what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from disteval.audit import broken
from disteval.audit.answers import LISTS, Answer, Result, is_close
from disteval.audit.case import Settings
from disteval.audit.cases import cases, not_held
from disteval.audit.findings import Finding, Report
from disteval.audit.findings import replay as replay_of
from disteval.audit.judge import Judgement, Problem, is_weighed, judge, show
from disteval.audit.notes import Notes
from disteval.audit.on_ranks import Target, name_of
from disteval.audit.planted import Planted
from disteval.audit.weights import Weights, explain
from disteval.audit.worlds import AuditWorlds
from disteval.errors import WorldError
from disteval.worlds import World

DEFAULT_WORLD_SIZES = (1, 2, 3)
DEFAULT_TIMEOUT = 20.0
DEFAULT_SECONDS = 300.0

_MOST_BROKEN = 4  # of a function that was right in no case
_MOST_PROBES = 128  # each is a call; larger cases are told without weights
_IDS = (
    "ids are not positions here; a function that needs them to be must say so, with "
    "evaluate.assumes = ('numbered',)"
)


class Audit:
    """One audit of one function; see `audit` for the arguments.

    Args:
        only: The one case to try; None stands for all.
        first: Whether to stop at the first case that is wrong.
        led: Ranks that somebody else has started.
        on_finding: Called with each finding as soon as it is known.
        on_case: Called after each case, with the number of cases that are done, and of all.
    """

    def __init__(
        self,
        target: Target,
        world_sizes: Sequence[int] = DEFAULT_WORLD_SIZES,
        backend: str = "torch_cpu",
        launcher: str | None = None,
        tokens: bool = False,
        seed: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
        seconds: float = DEFAULT_SECONDS,
        *,
        only: Settings | None = None,
        first: bool = False,
        led: World | None = None,
        on_finding: Callable[[Finding], None] = lambda _: None,
        on_case: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.report = Report(name_of(target), backend)
        self._sizes, self._tokens, self._seed = sorted(set(world_sizes)), tokens, seed
        self._launcher, self._seconds, self._only, self._first = launcher, seconds, only, first
        self._worlds = AuditWorlds(target, backend, launcher, timeout, led)
        self._references: dict[Planted, Result | None] = {}
        self._alone = led is None or led.world_size == 1
        self._broken_cases: list[Settings] = []
        self._raises_everywhere = True
        self._notes = Notes()
        self._on_finding, self._on_case = on_finding, on_case

    def run(self) -> Report:
        """Try the cases one after another, the smallest first, until the time is over."""
        begin = time.monotonic()
        report = self.report
        try:
            first = self._only.world_size if self._only else self._sizes[0]
            report.assumes = self._worlds.assumptions(first)
            chosen = list(self._cases())
            for settings in chosen:
                if self._keeps_state or self._is_like_a_broken(settings):
                    report.cases[settings] = "skipped"
                elif time.monotonic() - begin > self._seconds:
                    report.cases[settings] = "out of time"
                else:
                    report.cases[settings] = self._try(settings)
                self._on_case(len(report.cases), len(chosen))
                enough = self._first and report.findings and not self._fails_so_far
                if report.reason or enough:
                    break
        finally:
            self._worlds.close()
            report.seconds = time.monotonic() - begin
        if self._fails_so_far and not self._only:
            found = report.findings[0]
            report.reason = f"the function fails in every case: {found.sentence}"
            report.details = found.details
            report.findings.clear()
        report.warnings += self._notes.of_results()
        if not report.findings:
            report.warnings += self._notes.of_fetches()
            report.reason = report.reason or self._notes.nothing_compared or self._late
        if self._only and (missed := not_held(self._only, report.assumes)):
            report.warnings.append(f"the function assumes otherwise: {', and '.join(missed)}")
        return report

    @property
    def _late(self) -> str:
        """What to say of cases for which there was no time; an empty text if there are none."""
        late, total = self.report.counts["out of time"], len(self.report.cases)
        if not late:
            return ""
        return (
            f"{late} of {total} cases could not be tried within {self._seconds:g} s; allow more "
            f"seconds, or try fewer world sizes"
        )

    def _cases(self) -> Iterable[Settings]:
        if self._only is not None:
            return [self._only]
        return cases(self._sizes, self.report.assumes, tokens=self._tokens, seed=self._seed)

    def _try(self, settings: Settings) -> str:
        """Call the function three times in one case, and return the outcome."""
        one = Planted(settings.size, settings.seed, tokens=settings.tokens, other_ids=settings.ids)
        other = replace(one, inverted=True)
        judgements = []
        for planted in (one, other, one):
            was_fresh = self._worlds.is_fresh(settings.world_size)
            try:
                answers = self._worlds.call(settings, planted)
            except WorldError as error:
                return self._broken(settings, error)
            judgement = judge(planted, answers, self._reference(settings, planted))
            if judgement.refused:
                self.report.reason = f"{judgement.refused} (in the case {settings})"
                return "skipped"
            if judgement.problems:
                return self._explain(settings, planted, judgement, answers, was_fresh)
            judgements.append(judgement)
            self._notes.add(settings, judgement, answers)
        return self._compare(settings, judgements[0], judgements[2])

    def _reference(self, settings: Settings, planted: Planted) -> Result | None:
        """Return the result of one rank in one batch, for names whose truth is not known."""
        if not self._alone:
            return None
        if planted not in self._references:
            alone = settings.with_one_rank()
            try:
                answers = self._worlds.call(alone, planted)
            except WorldError:  # what has no reference is noted
                answers = [Answer()]
            self._references[planted] = answers[0].result
        return self._references[planted]

    def _compare(self, settings: Settings, first: Judgement, again: Judgement) -> str:
        before, after = first.result or {}, again.result or {}
        for name in dict.fromkeys([*before, *after]):
            one, other = before.get(name), after.get(name)
            if one is None or other is None or (name not in LISTS and not is_close(one, other)):
                self._add(
                    Problem(
                        "differs from call to call",
                        name,
                        f"{name} is {show(one)} in the first call and {show(other)} in the third, "
                        f"with the same samples",
                    ),
                    settings,
                )
                return "wrong"
        return "right"

    def _explain(
        self,
        settings: Settings,
        planted: Planted,
        judgement: Judgement,
        answers: Sequence[Answer],
        was_fresh: bool,
    ) -> str:
        """Find out more about wrong results, unless a smaller case has shown the same."""
        if not self.report.findings and self._is_right_otherwise(settings, planted, was_fresh):
            for problem in judgement.problems:
                sentence = (
                    f"{problem.sentence}, and right in another call with the same samples, so the "
                    f"function keeps state or depends on chance"
                )
                found = Problem("differs from call to call", problem.name, sentence)
                self._add(found, settings)
            return "wrong"
        fetched = [answer.fetched for answer in answers]
        for problem in judgement.problems:
            if any((f.kind, f.name) == problem[:2] for f in self.report.findings):
                continue
            weights = None
            value = (judgement.result or {}).get(problem.name)
            if is_weighed(problem, value) and settings.size <= _MOST_PROBES:
                weights = self._weights(settings, planted, problem.name)
            if weights is None:
                if problem.name not in [f.name for f in self.report.findings]:
                    self._add(problem, settings)
                continue
            fair = planted.fair_weights(problem.name)
            self._add(explain(problem, weights, fair, fetched), settings, weights, fair)
        return "wrong"

    def _is_right_otherwise(self, settings: Settings, planted: Planted, was_fresh: bool) -> bool:
        """Return whether the same call is right in new processes, or the next time."""
        if not was_fresh:
            self._worlds.renew(settings.world_size)
        try:
            answers = self._worlds.call(settings, planted)
        except WorldError:
            return False
        return not judge(planted, answers, self._reference(settings, planted)).problems

    def _weights(self, settings: Settings, planted: Planted, name: str) -> Weights | None:
        """Measure the weight of each sample in a result, with one call for each."""
        found = []
        for sample in range(settings.size):
            try:
                answers = self._worlds.call(settings, replace(planted, probe=sample))
            except WorldError:
                return None
            results = [a.result for a in answers if a.result is not None]
            value = results[0].get(name) if results else None
            if not isinstance(value, float):
                return None
            found.append(value)
        return np.array(found)

    def _broken(self, settings: Settings, error: WorldError) -> str:
        """Report a call that raised, lost ranks or did not return."""
        found = broken.describe(error)
        self._broken_cases.append(settings)
        self._raises_everywhere &= error.in_step
        self._add(Problem(found.kind, "", found.sentence), settings, details=str(error))
        return "wrong"

    @property
    def _fails_so_far(self) -> bool:
        """Whether every rank raised in every case, so that not even one sample is evaluated."""
        nothing_right = self.report.findings and not self.report.counts["right"]
        return bool(nothing_right) and self._raises_everywhere

    @property
    def _keeps_state(self) -> bool:
        """Whether earlier calls disturb later ones, so that no other case can be judged."""
        return any(found.kind == "differs from call to call" for found in self.report.findings)

    def _is_like_a_broken(self, settings: Settings) -> bool:
        """Return whether a call must be expected to break as an earlier one did.

        Each costs a time limit, or new ranks at least.
        """
        if len(self._broken_cases) >= _MOST_BROKEN and not self.report.counts["right"]:
            return True
        traits = broken.traits(settings)
        return any(traits == broken.traits(each) for each in self._broken_cases)

    def _add(
        self,
        problem: Problem,
        settings: Settings,
        weights: Sequence[float] | Weights = (),
        fair: Sequence[float] | Weights = (),
        details: str = "",
    ) -> None:
        report = self.report
        self._raises_everywhere &= problem.kind == "crashes"
        if any((f.kind, f.name) == problem[:2] for f in report.findings):
            return
        sentence = f"{problem.sentence}; {_IDS}" if settings.ids else problem.sentence
        finding = Finding(
            problem.kind,
            problem.name,
            sentence,
            settings,
            replay_of(report.target, report.backend, self._launcher, settings),
            tuple(map(float, weights)),
            tuple(map(float, fair)),
            details,
        )
        report.findings.append(finding)
        self._on_finding(finding)
