"""The function that every rank of ``disteval eval --elastic`` runs, and how it finds its lender."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disteval.cli.alone_rank import AloneRank, LeaseGroup
from disteval.cli.job import EvalJob
from disteval.errors import UsageError
from disteval.files import check_own
from disteval.world import report_progress
from disteval.world.channel.connection import Address, connect
from disteval.world.channel.link import Link
from disteval.world.rank import leader_of_rank

_FILE = "leader.json"

LEASES = "leases"
"""The purpose of a lender, see `disteval.world.bootstrap.named_leader`."""


def announced_lender(folder: Path) -> Address:
    """Return what `announced` has written to the folder of a ledger.

    Raises:
        UsageError: No leader has written there, or a stranger may have done so; or the leader has
            ended, or is on another host and listens on its own alone.
    """
    try:
        check_own(folder)
        address = Address.load((folder / _FILE).read_bytes())
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"--join: no evaluation runs with the ledger {folder} ({error}); start one with "
            f"--elastic --ledger {folder}, and join it while it runs"
        ) from error
    # Without a host the lender listens in a folder of its own host, which it removes at its end.
    if address.host is None and not Path(address.folder).exists():
        raise UsageError(
            f"the leader of this evaluation has ended, or listens for ranks of its own host "
            f"alone: {address.folder} is not there. Join it on its host, or start it with "
            f"DISTEVAL_LEADER and DISTEVAL_KEY_FILE, or on a Ray cluster"
        )
    return address


@contextmanager
def announced(address: Address, folder: Path) -> Iterator[None]:
    """Let the block's evaluation be joined by whoever can read a file of mode 600 there."""
    folder.mkdir(parents=True, exist_ok=True)
    draft, path = folder / f"{_FILE}.{os.getpid()}", folder / _FILE
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(address.dump())
    draft.rename(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


@dataclass(frozen=True)
class ElasticJob:
    """What one rank is to do.

    Attributes:
        job: The settings of the evaluation.
        lender: The address of somebody else's lender, which gives this rank another number; None if
            the leader of this rank lends.
        rank: The number of this rank.
        world_size: The number of ranks that were started together.
        ranks_per_lease: The number of ranks that evaluate a lease together.
        groups: A private folder, in which groups meet.
    """

    job: EvalJob
    lender: Address | None
    rank: int
    world_size: int
    ranks_per_lease: int
    groups: Path

    def group(self) -> LeaseGroup:
        """Return the group of this rank, whose folder the first of its ranks makes.

        Raises:
            UsageError: The folder of all groups is on another host.
        """
        number, rank = divmod(self.rank, self.ranks_per_lease)
        path = self.groups / f"group-{number}"
        if self.ranks_per_lease > 1:
            if not self.groups.is_dir():
                raise UsageError(
                    f"rank {self.rank} runs on the host {socket.gethostname()}, where "
                    f"{self.groups} is missing, in which the ranks of a group meet; with "
                    f"--ranks-per-lease all ranks must be on the host of the command that starts "
                    f"them. Start them there alone, and others with --join on their own host"
                )
            path.mkdir(mode=0o700, exist_ok=True)
        return LeaseGroup(number, rank, self.ranks_per_lease, path)


def run_elastic_job(_: None, work: ElasticJob) -> dict[str, Any]:
    """Evaluate leases until none is left.

    Returns:
        The report that ``--json`` writes, which is the same on every rank except for the times.
    """
    from disteval.evaluation.borrowed import run_leases

    task = work.job.task(AloneRank(work.rank, work.world_size, work.group()))
    with ExitStack() as stack:
        link = leader_of_rank()
        if work.lender is not None:
            link = stack.enter_context(closing(Link(connect(work.lender))))
            link.report(None)
        assert link is not None  # this runs on a rank
        target = work.job.target(task)
        result = run_leases(task, link, predictions=target, progress=report_progress)
    return work.job.report(task, result)
