"""A call that raised, lost ranks or hung is a finding that says where each rank is."""

import re
import threading
import time
from typing import Any

import pytest
from disteval import WorldError, get_dist_backend
from disteval.audit import Audit, Case
from disteval.world import World

from suites.helpers.audits import (
    audited,
    first_finding,
    shorten_calls_after_a_hang,
    shorten_first_calls,
)
from suites.helpers.needs import needs

ENDS = {
    # Who waits is named after the rank that is at fault.
    "is_killed": ("crashes", r"^rank 1 .*SIGABRT.*rank 0 raised"),
    "raises": ("crashes", r"^rank 1 .*no samples.*rank 2 .*; rank 0 .* new_group \(ends\.py, line"),
    "gathers": (
        "crashes",
        r"^rank 1 .*no samples.*ranks 0, 2 .* all_gather_object \(ends\.py, line",
    ),
    "sleeps": (
        "hangs",
        r"ranks 0, 2 .* all_reduce \(ends\.py, line.*rank 1 .* nap \(ends\.py, line",
    ),
}
"""How a loop of `suites.audit.ends` ends on rank 1, and what each rank is said to do then."""


@needs("torch_cpu")
@pytest.mark.parametrize("name", ENDS)
def test_a_finding_names_the_rank_at_fault_and_where_the_others_wait(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_first_calls(monkeypatch)
    kind, expected = ENDS[name]
    report = audited(f"suites.audit.ends:{name}", timeout=5.0, case="N=2,B=1,W=3")
    assert first_finding(report) == (kind, "N=2,B=1,W=3")
    assert re.search(expected, report.findings[0].sentence), report.findings[0].sentence


def hangs_with_uneven_shares_or_when_shuffled(case: Case) -> Any:
    own = range(case.rank, len(case.dataset), case.world_size)
    # Of many samples so few that a call takes no second, also on a busy machine.
    rounds = min(len(own), 20) + (case.rank == 0 and case.shuffle and case.world_size > 1)
    for _ in range(rounds):
        get_dist_backend().all_gather_object(0)
    return {"count": len(case.dataset)}


def test_a_hang_costs_one_time_limit_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def run(world: World, *args: Any, timeout: float, **options: Any) -> Any:
        try:
            return real(world, *args, timeout=timeout, **options)
        except WorldError:
            waited.append(timeout)
            raise

    real = World.run
    monkeypatch.setattr(World, "run", run)
    shorten_first_calls(monkeypatch)
    shorten_calls_after_a_hang(monkeypatch)  # for calls on a busy machine take long
    report = Audit(hangs_with_uneven_shares_or_when_shuffled, backend="threads", timeout=3.0).run()
    assert [found.kind for found in report.findings] == ["hangs"]
    for found in ("rank 0 ", "all_gather_object", "test_broken.py"):
        assert found in report.findings[0].sentence
    *calls, _ = waited  # the last one is tried again, for longer the busier the machine is
    assert calls.count(3.0) == 1, waited
    assert len(waited) < 8, waited
    assert report.counts["right"] > 50, report.counts


def compiles_at_first(case: Case) -> Any:
    if case.rank == 0 and case.world_size not in _compiled:
        _compiled.add(case.world_size)
        time.sleep(1.5)
    found = get_dist_backend().all_gather_object(len(case.dataset))
    return {"count": sum(found) / len(found)}


_compiled: set[int] = set()


def test_a_first_call_may_take_several_times_the_limit() -> None:
    how = {"backend": "threads", "case": "N=3,B=1,W=2"}
    _compiled.clear()
    assert audited(compiles_at_first, timeout=1.0, **how).verdict == "sound"
    _compiled.clear()
    report = audited(compiles_at_first, timeout=0.2, **how)
    assert report.verdict == "not judged"  # for it is right when it is called once more
    assert re.search(r"hangs.* 1\.2 s.*--timeout", report.reason), report.reason
    for option in ("--case N=3,B=1,W=2", "--timeout 0.2"):
        assert option in report.reason


def test_a_later_call_of_one_rank_may_be_merely_slow() -> None:
    def takes_half_a_second(case: Case) -> Any:
        time.sleep(0.5)
        return {"count": len(case.dataset)}

    report = Audit(takes_half_a_second, (1,), backend="threads", timeout=0.2).run()
    assert report.verdict == "not judged"
    assert "--timeout" in report.reason


_calls: list[int] = []
_end = threading.Event()


def waits_for_the_end(case: Case) -> Any:
    _calls.append(case.rank)
    _end.wait(60.0)


def test_what_always_hangs_is_not_judged_and_costs_one_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_first_calls(monkeypatch)
    report = Audit(waits_for_the_end, backend="threads", timeout=1.0).run()
    _end.set()
    assert report.verdict == "not judged"
    assert ("rank 0 " in report.reason, waits_for_the_end.__name__ in report.reason) == (True, True)
    assert _calls == [0]
