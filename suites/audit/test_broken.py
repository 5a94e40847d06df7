"""What the audit says about a call that raised, lost ranks or hung names the cause first."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from disteval import get_dist_backend
from disteval.audit import Audit, Case
from disteval.audit.broken import Breaks, Broken, describe, may_be_slow
from disteval.audit.cases import parse
from disteval.audit.worlds import AuditWorlds, Limits
from disteval.errors import WorldError
from disteval.worlds import World
from disteval.worlds.postmortem import PARTED

LIBRARY = "/venv/lib/python3.11/site-packages/torch/distributed"
STACK = f"""rank 1 raised ValueError: no samples; the order was to run call
  rank 0: outside of collectives, 0 done
  rank 1: raised ValueError: no samples
  rank 2: returned
stack of rank 0:
  main thread (innermost call first):
    File "{LIBRARY}/distributed_c10d.py", line 10 in _new_process_group_helper
    File "{LIBRARY}/distributed_c10d.py", line 20 in new_group
    File "{LIBRARY}/c10d_logger.py", line 83 in wrapper
    File "/home/me/my_eval.py", line 12 in evaluate
"""
HANG = """no progress for 5 s on ranks 0, 1, 3; the order was to run call
  rank 0: waits in barrier #2
  rank 1: never entered barrier #2
  rank 2: returned
  rank 3: never entered barrier #2
stack of rank 0:
  main thread (innermost call first):
    File "/usr/lib/python3.11/site-packages/mpi4py/util.py", line 3 in poll
    File "/home/me/my_eval.py", line 12 in evaluate
stack of rank 1:
  another thread (innermost call first):
    File "/home/me/feeder.py", line 3 in feed
  main thread (innermost call first):
    File "/usr/lib/python3.11/site-packages/requests/api.py", line 3 in get
    File "/home/me/remote.py", line 9 in load
    File "/home/me/my_eval.py", line 12 in evaluate
stack of rank 3:
  (the rank wrote no stack: it is blocked outside of Python)
"""


def test_a_rank_that_was_killed_is_named_before_those_that_can_not_reach_it() -> None:
    report = "rank 1 was lost (killed by SIGABRT); the order was to run call\n  rank 0: raised"
    found = describe(WorldError(report, {0: RuntimeError("connection reset")}, lost=[1]))
    sentence = "rank 1 was lost (killed by SIGABRT); rank 0 raised RuntimeError: connection reset"
    assert found == ("crashes", sentence, False, True)


def test_ranks_wait_in_a_function_that_people_call() -> None:
    found = describe(WorldError(STACK, {1: ValueError("no samples")}))
    assert found.sentence == (
        "rank 1 raised ValueError: no samples; meanwhile rank 2 has returned; rank 0 waits in "
        "new_group (my_eval.py, line 12)"
    )


def test_ranks_wait_in_a_collective_of_objects_and_not_in_its_parts() -> None:
    whole = STACK.replace("20 in new_group", "20 in all_gather_object")
    inner = whole.replace("10 in _new_process_group_helper", "10 in all_gather")
    found = describe(WorldError(inner, {1: ValueError("no samples")}))
    assert found.sentence.endswith("rank 0 waits in all_gather_object (my_eval.py, line 12)")


@pytest.mark.parametrize("host", ["", "node-1: "])
def test_a_hang_says_where_each_rank_is(host: str) -> None:
    report = HANG.replace("  rank ", f"  {host}rank ").replace("stack of", f"{host}stack of")
    found = describe(WorldError(report))
    assert (found.kind, found.alone) == ("hangs", False)
    assert found.sentence == (
        "rank 2 has returned; rank 0 waits in barrier (my_eval.py, line 12); rank 1 is in load "
        "(remote.py, line 9); rank 3 is blocked outside of Python: no progress for 5 s"
    )


def test_a_function_may_fail_everywhere_until_a_rank_had_to_wait_for_another() -> None:
    alone, waited = Broken("crashes", "", alone=True), Broken("crashes", "")
    killed = Broken("crashes", "", lost=True)
    for founds, expected in [
        ([alone, killed], True),
        ([alone, waited], False),
        ([alone, waited, alone], False),
        ([killed, alone], False),
    ]:
        breaks = Breaks()
        for found in founds:
            breaks.add(parse("N=1,B=1,W=1"), found)
        assert breaks.alone is expected, founds


def hangs_with_uneven_shares_or_when_shuffled(case: Case) -> Any:
    own = range(case.rank, len(case.dataset), case.world_size)
    rounds = len(own) + (case.rank == 0 and case.shuffle and case.world_size > 1)
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
    monkeypatch.setattr("disteval.audit.worlds._TIMES_FIRST", 1.0)
    monkeypatch.setattr("disteval.audit.worlds._LEAST_SECONDS", 1.0)
    monkeypatch.setattr("disteval.audit.worlds._TIMES_SLOWER", 0.0)  # than calls on a busy machine
    report = Audit(hangs_with_uneven_shares_or_when_shuffled, backend="threads", timeout=3.0).run()
    assert [found.kind for found in report.findings] == ["hangs"]
    assert "rank 0 waits in all_gather_object (test_broken.py, line " in report.findings[0].sentence
    assert waited.count(3.0) == 1, waited
    assert len(waited) < 8, waited
    assert report.counts["right"] > 50, report.counts


def test_limits_are_those_of_the_user_until_a_call_hung() -> None:
    limits = Limits(20.0)
    assert (limits.of(fresh=False), limits.of(fresh=True)) == (20.0, 120.0)
    limits.note(True, 1.0)
    limits.note(False, 0.1)
    assert (limits.of(fresh=False), limits.of(fresh=True)) == (20.0, 26.0)
    limits.hurry = True
    assert (limits.of(fresh=False), limits.of(fresh=True)) == (4.0, 10.0)
    # The first call of a replay of a hang then takes 30 s: a little longer than one here.
    assert (limits.of_replay(hung=False), limits.of_replay(hung=True)) == (20.0, 5.0)
    limits.note(True, 25.0)
    assert limits.of_replay(hung=True) == 20.0


def compiles_at_first(case: Case) -> Any:
    if case.rank == 0 and case.world_size not in _compiled:
        _compiled.add(case.world_size)
        time.sleep(1.5)
    found = get_dist_backend().all_gather_object(len(case.dataset))
    return {"count": sum(found) / len(found)}


_compiled: set[int] = set()


def test_a_first_call_may_take_several_times_the_limit() -> None:
    _compiled.clear()
    only = parse("N=3,B=1,W=2")
    report = Audit(compiles_at_first, backend="threads", timeout=1.0, only=only).run()
    assert (report.verdict, report.findings) == ("sound", [])
    _compiled.clear()
    report = Audit(compiles_at_first, backend="threads", timeout=0.2, only=only).run()
    found = report.findings[0]
    assert found.kind == "hangs"
    assert found.sentence.endswith(
        "no progress for 1.2 s; this was the first call of these ranks; if it is merely slow, "
        "allow more with --timeout"
    )
    assert found.replay.endswith(" --case N=3,B=1,W=2 --backend threads --timeout 0.2")


def takes_half_a_second(case: Case) -> Any:
    time.sleep(0.5)
    return {"count": len(case.dataset)}


def test_a_later_call_of_one_rank_may_be_merely_slow() -> None:
    report = Audit(takes_half_a_second, (1,), backend="threads", timeout=0.2).run()
    assert report.verdict == "not judged"
    assert report.reason.endswith("; if it is merely slow, allow more with --timeout")
    assert "first call" not in report.reason or "no progress for 1.2 s" in report.reason


@pytest.mark.parametrize(
    ("rank_1", "state", "function", "expected"),
    [
        ("made no call after all_reduce #1 (2 float64)", "never entered #2", "evaluate", True),
        ("made no call", "outside of collectives, 0 done", "evaluate", True),
        ("made no call after all_reduce #1 (2 float64)", "returned", "", False),
        ("made no call", "outside of collectives, 0 done", "monitored_barrier", False),
        ("is in all_reduce #2 (2 float64)", "never entered barrier #2", "", False),
    ],
)
def test_a_rank_that_has_made_no_call_yet_may_be_slow_unless_it_returned(
    rank_1: str, state: str, function: str, expected: bool
) -> None:
    text = f"""no progress for 5 s on ranks 0, 1, 2; the order was to run call
  rank 0: waits in barrier #2
  rank 1: {state}
  rank 2: {state}
{PARTED}rank 1 {rank_1}, rank 0 is in all_gather #2 (2 float64)
"""
    if function:
        file = "/home/me/my_eval.py" if function == "evaluate" else f"{LIBRARY}/distributed_c10d.py"
        text += f"""stack of ranks 1, 2:
  main thread (innermost call first):
    File "{file}", line 12 in {function}
"""
    assert may_be_slow(describe(WorldError(text))) is expected
    assert not may_be_slow(describe(WorldError(text, {1: ValueError("no samples")})))


_end = threading.Event()


def waits_for_the_end(case: Case) -> Any:
    _end.wait(60.0)


def test_what_always_hangs_is_not_judged_and_costs_one_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    real = AuditWorlds.call
    monkeypatch.setattr(AuditWorlds, "call", lambda *args: calls.append(args) or real(*args))
    monkeypatch.setattr("disteval.audit.worlds._TIMES_FIRST", 1.0)

    report = Audit(waits_for_the_end, backend="threads", timeout=1.0).run()
    _end.set()
    assert report.verdict == "not judged"
    assert (
        "the function fails in every case: rank 0 is in waits_for_the_end (test_broken.py, "
        in report.reason
    )
    assert len(calls) == 1
