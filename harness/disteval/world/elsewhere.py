"""What ranks tell in a post-mortem: what the leader can't see from outside, or from its host."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from disteval.host import this_machine
from disteval.world.channel.leader import Channel
from disteval.world.channel.messages import Examine, Hello
from disteval.world.postmortem import RankStatus
from disteval.world.torch_dumps import tell_calls

_SECONDS = 15.0
_ANSWER_SECONDS = 5.0  # of one rank; its threads may be kept from running
_CALLS_SECONDS = 2.0


def examine_elsewhere(channel: Channel, ranks: Sequence[RankStatus]) -> None:
    """Have the ranks of each other machine examined by one of them; the next one if that is silent.

    Each machine is asked at the same time. No process of another machine is signalled from here.
    """
    machines: dict[str, list[RankStatus]] = {}
    for status in ranks:
        if status.hello is not None and status.hello.machine not in ("", this_machine()):
            machines.setdefault(status.hello.machine, []).append(status)
    asking = {name: [s.rank for s in there if not s.end] for name, there in machines.items()}
    deadline = time.monotonic() + _SECONDS
    while any(asking.values()) and time.monotonic() < deadline:
        turn = {found.pop(0): name for name, found in asking.items() if found}
        questions = {rank: Examine(machines[name]) for rank, name in turn.items()}
        for rank, answer in channel.examine(questions, _ANSWER_SECONDS).items():
            for status, seen in zip(machines.pop(turn[rank]), answer.ranks, strict=True):
                vars(status).update(vars(seen))
            del asking[turn[rank]]
    for status in [status for there in machines.values() for status in there]:
        status.unseen = "no rank of its host could be asked what it was doing"


def ask_for_calls(channel: Channel, ranks: Sequence[RankStatus]) -> None:
    """Have each rank that runs tell its calls of torch.distributed, also one that hangs in one."""
    running = [s for s in ranks if s.hello is not None and not (s.end or s.stopped)]
    inside = [s for s in running if s.hello and _is_this_process(s.hello)]
    if len(inside) == 1:  # the ranks of this process, if they are threads, share one record
        inside[0].calls = tell_calls(inside[0].rank)
    asked = {s.rank: Examine(()) for s in running if s not in inside}
    for rank, answer in channel.examine(asked, _CALLS_SECONDS).items():
        ranks[rank].calls = answer.calls


def _is_this_process(hello: Hello) -> bool:
    return (hello.pid, hello.machine) == (os.getpid(), this_machine())
