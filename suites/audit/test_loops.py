"""The audit convicts every wrong loop with its smallest case, and no right one."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from disteval.audit import Audit

from suites.audit import wrong  # noqa: F401  whose loops are in the table
from suites.audit.parts import LIBRARIES, WRONG, JoinedOnce
from suites.audit.right import RIGHT, Loop
from suites.helpers.audits import audited, first_finding
from suites.helpers.needs import needs

SOME = ("N=1,B=1,W=2", "N=5,B=2,W=2,shuffle", "N=9,B=4,W=2,ids", "N=23,B=3,W=2")
ALONE = ("hangs", "crashes", "differs from call to call")
"""The kinds for which an audit starts ranks again, and so needs ranks of its own."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_convicted_in_its_smallest_case(name: str) -> None:
    loop, kind, case = WRONG[name]
    report = Audit(loop, backend="threads", tokens="tokens" in case, first=True).run()
    assert first_finding(report) == (kind, case), report.findings


def test_ranks_of_somebody_else_that_count_alone_are_told_and_kept() -> None:
    loop, kind, case = WRONG["counts_everything_on_every_rank"]
    with JoinedOnce("threads", 2) as world:
        report = Audit(loop, (2,), "threads", led=world).run()
        assert first_finding(report) == (kind, case)
        assert world.is_open


@pytest.mark.parametrize("loop", RIGHT, ids=lambda loop: loop.__name__)
def test_a_right_loop_is_sound(loop: Loop) -> None:
    report = Audit(loop, (3,), "threads").run()  # those of libraries have two ranks
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")
    assert report.counts["right"] > 40
    # One sample, which a loop may give to both ranks, is too few to say that each counts alone.
    assert audited(loop, (2,), "threads", case="N=1,B=1,W=2").verdict == "sound"


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=needs(backend)) for name, backend in LIBRARIES.items()],
)
def ranks(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The loops of a library, its backend, and two ranks for them."""
    loops = importlib.import_module(f"suites.audit.{request.param}")
    backend = LIBRARIES[request.param]
    with JoinedOnce(backend, 2, timeout=60.0) as world:
        yield loops, backend, world


def test_wrong_loops_of_a_library_are_convicted_in_their_smallest_case(ranks: Any) -> None:
    loops, backend, world = ranks
    found = {}
    for name, (kind, case) in loops.WRONG.items():
        how = {"timeout": 5.0} if kind in ALONE else {"led": world}
        target, tokens = f"{loops.__name__}:{name}", "tokens" in case
        report = Audit(target, (2,), backend, tokens=tokens, first=True, **how).run()
        found[name] = first_finding(report)
    assert found == loops.WRONG


@needs("torch_cpu", "accelerate", "torchmetrics")
def test_wrong_loops_that_find_their_ranks_in_the_environment_are_convicted() -> None:
    """An audit sets it on the ranks that it starts."""
    loops = importlib.import_module("suites.audit.accelerate_loops")
    found = {}
    for name in loops.WRONG:
        report = Audit(f"{loops.__name__}:{name}", (2,), timeout=60.0, first=True).run()
        found[name] = first_finding(report)
    assert found == loops.WRONG


def test_right_loops_of_a_library_are_sound(ranks: Any) -> None:
    loops, backend, world = ranks
    own = [f"{loops.__name__}:{name}" for name in loops.RIGHT]
    for target in [*own, "suites.audit.right:evaluate_of_disteval"]:
        for case in SOME:
            report = audited(target, case=case, backend=backend, led=world)
            assert (report.verdict, report.reason) == ("sound", ""), (target, report.findings)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("torch_loops:distributed_sampler_trimmed_in_turn", marks=needs("torch")),
        pytest.param("torch_loops:stream_sharded_by_rank_and_worker", marks=needs("torch")),
        pytest.param("accelerate_loops:even_batches_off", marks=needs("torch", "accelerate")),
    ],
)
def test_a_right_loop_of_a_library_is_sound_in_every_case(target: str) -> None:
    report = Audit(f"suites.audit.{target}", (2,), timeout=60.0).run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")
    assert report.counts["right"] > 40


@needs("mpi4py")
def test_an_audit_starts_ranks_of_another_library() -> None:
    report = Audit("suites.audit.wrong:counts_padding", (2,), "mpi4py", first=True).run()
    assert first_finding(report) == ("counted twice", "N=3,B=1,W=2")
