"""A leader takes each rank once, and the replies that came while it was stopped."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path

import pytest
from disteval import WorldError
from disteval.worlds.channel.leader import Channel
from disteval.worlds.channel.messages import Hello, Order, Reply, send

OVER = 1e-9  # a deadline that is over before the leader looks at its connections


def test_a_leader_that_is_late_itself_finds_the_replies_that_came(tmp_path: Path) -> None:
    channel = Channel(2)
    pairs = [Pipe() for _ in range(2)]
    for rank, (_, theirs) in enumerate(pairs):
        send(theirs, Hello(rank, 0, 0))
    channel.listen(tmp_path, None)
    assert channel.wait_for_ranks([ours for ours, _ in pairs], lambda: False)
    send(pairs[0][1], Reply(b"done"))
    outcome = channel.carry_out([Order(b"", b"")] * 2, OVER)
    channel.close()
    assert outcome.replies == {0: Reply(b"done")}
    assert outcome.late() == [1]  # nobody waits for a rank that sent nothing


@pytest.mark.parametrize("ranks", [(0, 0, 1), (0, 2)])
def test_a_process_that_is_none_of_the_ranks_that_are_missing_is_refused(
    ranks: tuple[int, ...], tmp_path: Path
) -> None:
    channel = Channel(2)
    pairs = [Pipe() for _ in ranks]
    for at, (_, theirs) in enumerate(pairs):
        send(theirs, Hello(ranks[at], 100 + at, 0))
    channel.listen(tmp_path, None)
    message = f"process 101 reported as rank {ranks[1]}, .* ranks 0 to 1 reports once; start one"
    with pytest.raises(WorldError, match=message):
        channel.wait_for_ranks([ours for ours, _ in pairs], lambda: False)
    channel.close()
