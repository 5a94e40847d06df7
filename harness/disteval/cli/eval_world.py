"""The leader of ``disteval eval``: it starts ranks, shows what they do, and lends leases."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disteval.cli.job import Elastic, EvalJob, run_job
from disteval.cli.terminal import is_verbose, tell
from disteval.data.predictions import locked
from disteval.errors import UsageError, WorldError
from disteval.files import check_own, open_own
from disteval.leases.lender import Lender
from disteval.text import visible
from disteval.world import RankStatus, Results, World
from disteval.world.attached import check_here, has_named_leader, named_leader
from disteval.world.channel.link import Address

_GRACE_SECONDS = 2.0  # in which ranks return once there is a result
_PURPOSE = "leases"  # see `disteval.world.attached.named_leader`
_FILE = "leader.json"


@dataclass
class EvalLeader:
    """Leads the ranks of one evaluation, which it starts or joins.

    Attributes:
        job: What they are to do.
        new_world: Starts a world of so many ranks, in a group if none of them may be lost.
        size: The number of ranks.
        progress: Whether a bar is shown.
    """

    job: EvalJob
    new_world: Callable[[int], World]
    size: int
    progress: bool

    def evaluate(self) -> dict[str, Any]:
        """Run the job on every rank, and return the report of the first that returned.

        Raises:
            HarnessError: The evaluation failed: what ranks raised, or how they were lost.
        """
        elastic = self.job.elastic
        self._joined = None if elastic is None or not elastic.join else _leader_of(elastic)
        self._done = dict.fromkeys(range(self.size), 0)  # samples of each rank
        self._totals: dict[int, int] = {}
        self._lost: list[dict[str, Any]] = []
        self._lender: Lender | None = None
        with ExitStack() as self._stack:
            lends = elastic is not None and self._joined is None
            if lends and self.job.predictions is not None:
                self._stack.enter_context(locked(self.job.predictions))
            self._world = self._stack.enter_context(self.new_world(self.size))
            if elastic is not None and lends:
                self._lend(elastic)
            # A bar is for terminals (disable=None), not for log files.
            shown = None if self.progress and self._joined is None else True
            with tqdm(unit=" batches" if lends else " samples", disable=shown) as self._bar:
                report = self._report(self._run(self._world))
            if self._world.attached:
                self._world.leave()
            return report

    def _lend(self, elastic: Elastic) -> None:
        self._lender = Lender(
            elastic.ledger,
            timeout=self._world.timeout,
            ranks_per_lease=elastic.ranks_per_lease,
            expected=self.size,
            restarts=self._world.restarts,
            on_event=self._take_event,
            predictions=self.job.predictions,
        )
        self._stack.callback(self._lender.close)
        self._world.lend(self._lender, _named(self._world))
        self._unannounced = elastic.ledger

    def _run(self, world: World) -> Results:
        is_own, size, job = world is self._world, world.world_size, self.job
        if job.elastic is not None:
            groups, lender = world.folder, self._joined
            elastic = replace(job.elastic, lender=lender, world_size=size, groups=groups)
            job = replace(job, elastic=elastic)
        return world.run(
            run_job, *[job] * size, until=self._is_over if is_own else lambda _: False,
            on_lost=None if job.elastic is None else self._lose if is_own else _print_lost,
            on_progress=self._count if is_own else None, grace=_GRACE_SECONDS,
        )  # fmt: skip

    def _report(self, results: Results) -> dict[str, Any]:
        if self._lender is not None and (outcome := self._lender.outcome) is not None:
            if outcome.error is not None:
                raise pickle.loads(outcome.error)
            if not results.returned:
                # Ranks that others have started made the result; a new one gets it at once.
                with self.new_world(1) as another:
                    another.lend(self._lender)
                    results = self._run(another)
        report = _first_report(results)
        if self._lender is not None:
            found, counts = self._lender.report, self._lender.counts
            kept = ("committed", "resumed", "repeated", "copies", "failed")
            report["leases"] = {name: getattr(found, name) for name in kept}
            report["leases"] |= {"batches": counts.units, "lost": self._lost}
        return report

    def _is_over(self, _: Results) -> bool:
        if self._lender is None:
            return False
        counts = self._lender.counts
        told = f"{counts.leased} leased, {counts.lost} lost, {counts.repeated} repeated"
        self._bar.total = counts.units or None
        self._bar.set_postfix_str(told, refresh=False)
        self._bar.update(counts.done - self._bar.n)
        return self._lender.outcome is not None

    def _count(self, rank: int, done: int, total: int | None) -> None:
        self._done[rank] = done
        if total is not None:  # that of a stream is not known
            self._totals[rank] = total
        if self._lender is None:
            # Without a total the bar has the rate, and no time left.
            is_known = len(self._totals) == self.size
            self._bar.total = sum(self._totals.values()) if is_known else None
            self._bar.update(sum(self._done.values()) - self._bar.n)

    def _lose(self, lost: RankStatus) -> None:
        outcome = None if self._lender is None else self._lender.outcome
        if outcome is not None and outcome.error is not None and lost.error is not None:
            return  # every rank raises why the evaluation has failed
        self._lost.append({"rank": lost.rank, "how": lost.how})
        _print_lost(lost)

    def _take_event(self, kind: str, rank: int, what: str) -> None:
        others = rank >= self.size
        if self._unannounced and self._lender and self._lender.outcome is None:
            # The ledger is open, so no other leader has it.
            folder, self._unannounced = self._unannounced, None
            self._stack.enter_context(self._world.announced(folder / _FILE))
        said = {"joined": "has joined: {}", "failed": "{}; it gets no more leases", "slow": "{}"}
        if kind in said and (others or kind != "joined"):
            tell(f"disteval eval: rank {rank} {said[kind].format(what)}")
        elif kind == "silent":
            seen = None if others else self._world.look_at(rank)
            status = seen or RankStatus(rank)
            status.end = f"{what}, and {seen.how}" if seen else what
            self._lost.append({"rank": rank, "how": status.how})
            _print_lost(status)
        elif kind == "lost" and others:
            self._lose(RankStatus(rank, end=what))


def _named(world: World) -> Address | None:
    """Return where others join, if the user has named a place for that."""
    if not has_named_leader() or world.attached:  # ranks of a launcher meet there themselves
        return None
    named = named_leader(_PURPOSE)
    check_here(named)
    return named


def _leader_of(elastic: Elastic) -> Address:
    """Return the address of the leader that is to be joined.

    Raises:
        UsageError: No leader is named, or none has written into the folder of the ledger, or a
            stranger may have done so; or the leader has ended, or is on another host and listens
            on its own alone.
    """
    if (folder := elastic.ledger) is None:
        return named_leader(_PURPOSE)
    try:
        check_own(folder)
        with open_own(folder / _FILE, 0o077, "it says who leads, and with which key") as file:
            address = Address.load(file.read())
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"--join: no evaluation runs with the ledger {folder} ({error}); start one with "
            f"--elastic --ledger {folder}, and join it while it runs"
        ) from error
    # Without a host the leader listens in a folder of its own host, which it removes at its end.
    if address.host is None and not Path(address.folder).exists():
        raise UsageError(
            f"the leader of this evaluation has ended, or listens for ranks of its own host "
            f"alone: {address.folder} is not there. Join it on its host, or start it with "
            f"DISTEVAL_LEADER and DISTEVAL_KEY_FILE, or on a Ray cluster"
        )
    return address


def _first_report(results: Results) -> dict[str, Any]:
    """Return the report of the first rank that has one.

    Raises:
        HarnessError: What all ranks raised, or how they were lost.
    """
    if results.returned:
        found: dict[str, Any] = results[min(results.returned)]
        return found
    errors = {lost.rank: error for lost in results.lost if (error := lost.error) is not None}
    if len({(type(error), getattr(error, "what", str(error))) for error in errors.values()}) == 1:
        raise errors[min(errors)]
    told = "; ".join(f"rank {lost.rank}: {lost.how}" for lost in results.lost)
    raise WorldError(
        f"no rank is left ({told}); see why the ranks were lost, and run the command again: with "
        f"--ledger it goes on from what was committed",
        errors,
        lost=[lost.rank for lost in results.lost],
    )


def _print_lost(lost: RankStatus) -> None:
    tell(f"disteval eval: rank {lost.rank} was lost: {lost.how}")
    if is_verbose() and lost.hello is not None:
        tqdm.write(visible(str(lost.post_mortem)), file=sys.stderr)
