"""What the audit says about a call that raised or lost ranks names the cause first."""

from __future__ import annotations

from disteval.audit.broken import describe
from disteval.errors import WorldError

STACK = """rank 1 raised ValueError: no samples; the order was to run call
stack of rank 0:
  main thread (innermost call first):
    File "torch/distributed/distributed_c10d.py", line 10 in _new_process_group_helper
    File "torch/distributed/distributed_c10d.py", line 20 in new_group
    File "torch/distributed/c10d_logger.py", line 83 in wrapper
"""


def test_a_rank_that_was_killed_is_named_before_those_that_can_not_reach_it() -> None:
    report = "rank 1 was lost (killed by SIGABRT); the order was to run call\n  rank 0: raised"
    found = describe(WorldError(report, {0: RuntimeError("connection reset")}, lost=[1]))
    sentence = "rank 1 was lost (killed by SIGABRT); rank 0 raised RuntimeError: connection reset"
    assert found == ("crashes", sentence)


def test_ranks_wait_in_a_function_that_people_call() -> None:
    found = describe(WorldError(STACK, {1: ValueError("no samples")}))
    said = "rank 1 raised ValueError: no samples; meanwhile rank 0 waits in new_group"
    assert found == ("crashes", said)
