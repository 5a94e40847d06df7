"""The audit judges loops over MPI, in JAX and in Keras as it does those in torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from disteval.audit import Audit
from disteval.audit.cases import parse
from disteval.audit.findings import case_text

from suites.audit.parts import JoinedOnce
from suites.helpers.needs import each, needs

BACKENDS = {"mpi4py": "mpi_loops", "jax": "jax_loops", "tf_collective": "keras_loops"}
SOME = ("N=1,B=1,W=2", "N=5,B=2,W=2,shuffle", "N=9,B=4,W=2,ids", "N=23,B=3,W=2")


@pytest.fixture(scope="module", params=each(*BACKENDS))
def ranks(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The loops of a library, and two ranks for them."""
    loops = importlib.import_module(f"suites.audit.{BACKENDS[request.param]}")
    with JoinedOnce(request.param, 2, timeout=60.0) as world:
        yield loops, {"backend": request.param, "led": world}


def test_wrong_loops_are_convicted_in_their_smallest_case(ranks: Any) -> None:
    loops, how = ranks
    found = {}
    for name in loops.WRONG:
        report = Audit(f"{loops.__name__}:{name}", (2,), first=True, **how).run()
        assert report.verdict == "wrong", (name, report.reason, report.details)
        found[name] = (report.findings[0].kind, case_text(report.findings[0].settings))
    assert found == loops.WRONG


def test_right_loops_are_sound(ranks: Any) -> None:
    loops, how = ranks
    own = [f"{loops.__name__}:{name}" for name in loops.RIGHT]
    for target in [*own, "suites.audit.right:evaluate_of_disteval"]:
        for case in SOME:
            report = Audit(target, only=parse(case), **how).run()
            assert (report.verdict, report.reason) == ("sound", ""), (target, report.findings)


@needs("mpi4py")
def test_an_audit_starts_ranks_of_another_library() -> None:
    report = Audit("suites.audit.wrong:counts_padding", (2,), "mpi4py", first=True).run()
    assert str(report.findings[0]).startswith("counted twice: sample 0 of 3 counts 0.5 instead of")
