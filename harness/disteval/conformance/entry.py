"""The pytest entry point: the fixture of audits, and the plugin once a command line asks for it.

pytest imports this wherever the harness is installed. The plugin's options, such as ``--backend``,
are short, and other plugins may have them too; so it is loaded by a command line that has
``--disteval-backend``, or names ``disteval``, and by those that ask for it with ``-p`` or in a
conftest. A conftest in an installed package comes too late to add options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_PLUGIN = "disteval.conformance.plugin"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the plugin if the command line uses it."""
    asked = any(arg.partition("=")[0] == "--disteval-backend" for arg in args)
    ours = "--pyargs" in args and any(arg.partition(".")[0] == "disteval" for arg in args)
    if asked or ours:
        early_config.pluginmanager.import_plugin(_PLUGIN)


@pytest.fixture
def disteval_audit(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Audit an evaluation function as `disteval.audit.audit` does, and note the result for JUnit.

    The verdict, the number of cases and each finding become properties of the test.
    """
    from disteval.audit import AuditError, audit

    def run(evaluate: Any, *args: Any, **settings: Any) -> Any:
        try:
            report = audit(evaluate, *args, **settings)
        except AuditError as error:
            note(error.report)
            raise
        note(report)
        return report

    def note(report: Any) -> None:
        # pytest's own fixture for this warns under its default form of the file.
        request.node.user_properties += [
            ("disteval_verdict", report.verdict),
            ("disteval_cases", sum(report.counts.values())),
            *(("disteval_finding", str(finding)) for finding in report.findings),
        ]

    return run
