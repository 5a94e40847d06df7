"""The conformance suite catches every broken backend, and calls no correct one broken."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from harness.conformance.runner import Report, check_backend, select_rules
from suites.mutants.broken import MUTANTS, Mutant
from suites.mutants.correct import CORRECT

# Mutants that hang do so for this long; a correct backend on a busy machine must be faster.
TIMEOUT = 5.0


def check(cls: type, world_sizes: tuple[int, ...], *rules: str) -> Report:
    return check_backend(
        cls.__name__, cls, cls, world_sizes, rules=select_rules(rules), timeout=TIMEOUT
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_killed_by_its_rule(mutant: type[Mutant]) -> None:
    sizes = (5,) if mutant.__name__.endswith("ForFive") else (2, 3)
    report = check(mutant, sizes, mutant.breaks)
    assert report.verdict == "broken"
    failed = [result for result in report.rules if result.outcome == "failed"]
    assert all(result.message for result in failed)


@pytest.mark.parametrize("backend", CORRECT, ids=lambda backend: backend.__name__)
def test_no_correct_backend_is_called_broken(backend: type) -> None:
    report = check(backend, (1, 2, 3))
    wrong = [r for r in report.rules if r.outcome not in ("passed", "unsupported")]
    assert wrong == []
    assert report.verdict == "conformant"


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 45
    assert len(CORRECT) >= 8


def test_a_declared_no_that_works_is_a_failure() -> None:
    from harness.contract import Capabilities, No
    from suites.mutants.correct import Reference

    class TooModest(Reference):
        capabilities = Capabilities(propagates_errors=No("it seemed hard"))

    report = check(TooModest, (2,), "6.1")
    assert report.verdict == "broken"
    assert "declared a no (it seemed hard), but it works" in report.rules[0].message
