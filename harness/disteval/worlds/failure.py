"""The errors of a worker group, each with its post-mortem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disteval.errors import WorldError
from disteval.worlds.channel.messages import Hello
from disteval.worlds.channel.outcome import Outcome
from disteval.worlds.launchers import Launcher
from disteval.worlds.postmortem import RankStatus, report

_LOG_SECONDS = 5.0


def failed_start(
    launcher: Launcher,
    directory: Path,
    world_size: int,
    hellos: Mapping[int, Hello],
    seconds: float,
) -> WorldError:
    """Return the error of a group not all of whose ranks have reported.

    Args:
        launcher: What started the ranks.
        directory: The control directory.
        world_size: The number of ranks.
        hellos: The first messages of the ranks that have reported.
        seconds: How long the ranks had.
    """
    ranks = [RankStatus(rank, hellos.get(rank)) for rank in range(world_size)]
    launcher.examine(directory, ranks)
    why = "; ".join(f"process {number}: {how}" for number, how in launcher.ended().items())
    headline = why or f"not every rank started within {seconds:g} s"
    return WorldError(report(headline, ranks, launcher.log()))


def failed_order(
    launcher: Launcher,
    directory: Path,
    what: str,
    outcome: Outcome,
    hellos: Mapping[int, Hello],
    timeout: float,
) -> WorldError:
    """Return the error of an order that not every rank has carried out.

    Args:
        launcher: What started the ranks.
        directory: The control directory.
        what: The order in a few words.
        outcome: The replies, and the lost ranks.
        hellos: The first message of each rank.
        timeout: Seconds that a rank had between two messages.
    """
    ranks = [_status(rank, outcome, hellos[rank], launcher) for rank in range(outcome.world_size)]
    launcher.examine(directory, ranks)
    lost = []
    if outcome.lost:
        launcher.wait_for_log(_LOG_SECONDS)  # mpirun logs how the process ended
        first = outcome.lost[0]
        lost = [f"rank {first} was lost ({ranks[first].end})"]
        if others := [str(rank) for rank in outcome.lost[1:]]:
            # A launcher that loses one rank ends the others, so the first is to blame.
            lost.append(f"and then rank{'s' * (len(others) > 1)} {', '.join(others)}")
    raised = [f"rank {s.rank} raised {s.summary}" for s in ranks if s.raised]
    late = [str(rank) for rank in outcome.late()]
    silent = f"no progress for {timeout:g} s on rank{'s' * (len(late) > 1)} {', '.join(late)}"
    headline = f"{'; '.join(lost or raised or [silent])}; the order was to {what}"
    text = report(headline, ranks, launcher.log())
    return WorldError(text, outcome.exceptions(), in_step=outcome.in_step)


def _status(rank: int, outcome: Outcome, hello: Hello, launcher: Launcher) -> RankStatus:
    status = RankStatus(rank, hello)
    reply = outcome.replies.get(rank)
    if reply is not None:
        status.returned = not reply.trace
        status.raised = reply.trace
        status.summary = reply.summary
    if rank in outcome.lost:
        status.lost = True
        status.end = launcher.how_lost(rank)
    return status
