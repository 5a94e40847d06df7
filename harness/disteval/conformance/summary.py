"""The summary at the end of pytest: the verdict of each backend, with what it covers."""

from __future__ import annotations

from collections.abc import Collection, Generator
from functools import cached_property
from typing import Any

import pytest

from disteval.conformance.results import RuleResult, contract
from disteval.conformance.rule import Rule
from disteval.conformance.verdict import judge
from disteval.judging.report import Verdict
from disteval.text import visible

RESULT = pytest.StashKey[RuleResult]()
"""Where a test leaves the result of its rule."""

NOTHING_TRIED = 2
"""The exit status of a run in which nothing was tried, which is that of ``disteval check``."""

_RECORD = "disteval_record"


class SummaryPlugin:
    """A pytest plugin that prints verdicts, and fails a run on ranks in which nothing was tried.

    The reports of tests carry the results, so those of the workers of pytest-xdist come together.

    Args:
        named: The backends that have to be tried if a test asks for them.
        is_launched: Whether a launcher has started the ranks, on which some test has to run.

    Attributes:
        records: The result of each rule and world size, by backend.
        known: The contract of each backend, and why it can't do more than one rank, as `judge`
            takes them.
        skipped: The number of tests on ranks that were skipped; of any tests on launched ranks.
        ran: The number of tests that ran, on ranks or not.
    """

    def __init__(self, named: Collection[str], is_launched: bool) -> None:
        self.named, self.is_launched = named, is_launched
        self.records: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self.known: dict[str, tuple[dict[str, str], str]] = {}
        self.skipped, self.ran = 0, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the report of a test on ranks what it found, as plain values."""
        report = yield
        if "worlds" in getattr(item, "fixturenames", ()):
            setattr(report, _RECORD, _record(item, report))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the result of a test, which may have run in another process."""
        record = getattr(report, _RECORD, None)
        # A test that is expected to fail, and does, is reported as skipped.
        ran = report.when == "call" and (not report.skipped or hasattr(report, "wasxfail"))
        self.ran += ran
        self.skipped += report.skipped and not ran and (record is not None or self.is_launched)
        if record:
            target, known, result = record
            records = self.records.setdefault(target, {})
            if result is not None:
                records[result["id"], result["world_size"]] = result
            self.known[target] = known or self.known.get(target, ({}, ""))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Change the exit status 0 of a run in which nothing was tried."""
        is_worker = hasattr(session.config, "workerinput")
        if not is_worker and self._reason(exitstatus):
            session.exitstatus = NOTHING_TRIED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Print the verdict of each backend."""
        verdicts = self._verdicts.items()
        lines = [f"{target} {verdict.covers}" for target, verdict in verdicts]
        if reason := self._reason(exitstatus):
            lines.append(f"{reason}, so the exit status is {NOTHING_TRIED}")
        if lines:
            terminalreporter.write_sep("=", "disteval")
        for line in lines:
            terminalreporter.write_line(visible(line))

    @cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        return {
            target: judge(results.values(), *self.known[target])
            for target, results in self.records.items()
        }

    def _reason(self, exitstatus: int) -> str:
        """Return why a run without failures proves nothing; empty if it does."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.is_launched:
            return "no test was run"
        if exitstatus != pytest.ExitCode.OK:
            return ""
        verdicts = self._verdicts
        untried = [target for target, verdict in verdicts.items() if verdict.exit_code]
        if untried and len(untried) == len(verdicts):
            return "no rule was tried"
        if missing := [target for target in untried if target in self.named]:
            return f"no rule was tried on {', '.join(missing)}, which has to be tried"
        if self.skipped and not self.ran:
            return "every test was skipped"
        return ""


def _record(
    item: pytest.Item, report: pytest.TestReport
) -> tuple[str, Any, dict[str, Any] | None] | tuple[()]:
    """Return a backend, what is known of its class, and the result of a test of a rule.

    There is no result if the test was skipped before it tried the rule, and nothing at all before
    a test of a rule has ended, or if it is no such test.
    """
    params = item.callspec.params  # type: ignore[attr-defined]
    rule = params.get("rule")
    if not isinstance(rule, Rule) or (report.when != "call" and report.passed):
        return ()
    target, size = params["worlds"]
    worlds = item.funcargs.get("worlds")  # type: ignore[attr-defined]
    known = None
    if worlds is not None:
        known = contract(worlds.cls), worlds.cls.capabilities.why_not("multi_rank")
    result = item.stash.get(RESULT, None)
    if result is None and report.skipped:
        return target, known, None
    result = result or RuleResult.of(rule, size, "error")
    names = ("id", "level", "world_size", "outcome", "examples", "message")
    return target, known, {name: getattr(result, name) for name in names}
