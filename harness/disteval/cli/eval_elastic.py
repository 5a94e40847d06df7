"""``disteval eval --elastic``: the leader lends leases to ranks, any of which may be lost."""

from __future__ import annotations

import pickle
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disteval.cli.elastic_job import (
    LEASES,
    ElasticJob,
    announced,
    announced_lender,
    run_elastic_job,
)
from disteval.cli.elastic_options import Elastic
from disteval.cli.eval_in_step import Starter
from disteval.cli.job import EvalJob
from disteval.cli.terminal import is_quiet, is_verbose
from disteval.data.predictions import locked
from disteval.errors import WorldError
from disteval.leases.lender import Lender
from disteval.leases.members import Event
from disteval.text import visible
from disteval.world import RankStatus, Results, World
from disteval.world.bootstrap import check_here, has_named_leader, named_leader
from disteval.world.channel.connection import Address
from disteval.world.processes import private_folder

_GRACE_SECONDS = 2.0  # in which ranks return once there is a result
_RANKS_SHOWN = 8
_SHOW_SECONDS = 0.1


def lend(start: Starter, job: EvalJob, options: Elastic) -> dict[str, Any]:
    """Start ranks, lend leases to them until all are committed, and return the report.

    Args:
        start: Starts the ranks.
        job: The settings of the evaluation.
        options: The options of leases.

    Raises:
        HarnessError: The evaluation failed: what ranks raised, or how all of them were lost.
    """
    lender = None
    if options.join:
        ledger = options.ledger
        lender = named_leader(LEASES) if ledger is None else announced_lender(ledger)
    with ExitStack() as stack:
        if job.predictions is not None and lender is None:
            stack.enter_context(locked(job.predictions))
        world = stack.enter_context(start.elastic_world(start.size))
        job = replace(job, shares_memory=not world.own_processes and not world.attached)
        if lender is not None:
            groups = options.ranks_per_lease, stack.enter_context(private_folder())
            return _first_report(_run(world, job, lender, groups, True, lambda: True, _print_lost))
        return _Leader(world, start, job, options, stack).run()


class _Leader:
    """The leader's side of one evaluation."""

    def __init__(
        self, world: World, start: Starter, job: EvalJob, options: Elastic, stack: ExitStack
    ) -> None:
        self._world, self._start, self._job = world, start, job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._done = dict.fromkeys(range(start.size), 0)  # samples of each own rank
        self._lost: list[dict[str, Any]] = []
        self._joined: set[int] = set()  # ranks that somebody else has started
        self._gone: dict[int, str] = {}  # own ranks that get no more leases, and why
        directory = stack.enter_context(private_folder())
        self._lender = Lender(
            options.ledger,
            directory,
            *_place(world),
            timeout=start.timeout,
            ranks_per_lease=options.ranks_per_lease,
            expected=start.size,
            on_event=self._events.put,
            predictions=job.predictions,
        )
        stack.push(self._lender)  # ranks of other hosts may not have the result yet
        self._ledger, self._stack = options.ledger, stack
        self._address = self._lender.address
        self._announced = False
        self._groups = options.ranks_per_lease, directory

    def run(self) -> dict[str, Any]:
        """Run the evaluation, and return its report."""
        with _bar(self._start.progress) as bar:

            def going_on() -> bool:
                self._take_events()
                self._show(bar)
                self._end_without_ranks()
                return self._lender.outcome is None

            results = _run(
                self._world, self._job, self._address, self._groups, False, going_on, self._lose,
                self._count,
            )  # fmt: skip
            self._world.close()  # ranks need not wait for others
            while going_on() and self._joined:
                self._lender.wait(_SHOW_SECONDS)
            self._take_events()
        outcome = self._lender.outcome
        if outcome is not None and outcome.error is not None:
            raise pickle.loads(outcome.error)
        if not results.returned and outcome is not None:
            # Ranks that others have started made the result; a new one gets it at once.
            with self._start.elastic_world(1) as another:
                results = _run(
                    another, self._job, self._address, self._groups, True, lambda: True, _print_lost
                )
        report = _first_report(results)
        if "task" in report:
            seconds = {rank: results[rank]["seconds"] for rank in results.returned}
            report["ranks"] = [
                {"samples": done, "seconds": seconds.get(rank, report["seconds"])}
                for rank, done in self._done.items()
            ]
        found = self._lender.report
        counts = self._lender.counts
        report["leases"] = {
            "batches": counts.units,
            "committed": found.committed,
            "resumed": found.resumed,
            "repeated": counts.repeated,
            "copies": counts.copies,
            "lost": self._lost,
            "failed": [*found.failed],
        }
        return report

    def _count(self, rank: int, done: int, _total: int | None) -> None:
        self._done[rank] = done

    def _end_without_ranks(self) -> None:
        """End the evaluation if all ranks that are left have failed, and none will come."""
        gone = len(self._gone) == self._start.size and not self._joined
        gone = gone and bool(self._lender.report.failed)
        if gone and not self._world.restarts and self._lender.outcome is None:
            counts = self._lender.counts
            told = "; ".join(f"rank {rank} {how}" for rank, how in sorted(self._gone.items()))
            self._lender.fail(
                WorldError(
                    f"no rank is left, and {counts.done} of {counts.units} batches are committed: "
                    f"{told}. With --ledger, the same command goes on from there"
                )
            )

    def _lose(self, lost: RankStatus) -> None:
        outcome = self._lender.outcome
        if outcome is not None and outcome.error is not None and lost.error is not None:
            return  # every rank raises why the evaluation has failed
        if lost.rank < self._start.size:
            self._gone[lost.rank] = f"was lost: {lost.how}"
        self._lost.append({"rank": lost.rank, "how": lost.how})
        _print_lost(lost)

    def _take_events(self) -> None:
        while not self._events.empty():
            event = self._events.get()
            own = event.rank < self._start.size
            if self._ledger is not None and not self._announced and self._lender.outcome is None:
                # The ledger is open, so no other leader has it.
                self._stack.enter_context(announced(self._address, self._ledger))
                self._announced = True
            if event.kind == "joined" and not own:
                self._joined.add(event.rank)
                _tell(f"rank {event.rank} has joined: {event.what}")
            elif event.kind in ("joined", "back"):
                self._gone.pop(event.rank, None)
            elif event.kind == "failed":
                if own:
                    self._gone[event.rank] = event.what
                _tell(f"rank {event.rank} {event.what}; it gets no more leases")
            elif event.kind == "slow":
                _tell(f"rank {event.rank} {event.what}")
            elif event.kind == "lost" and event.what.startswith("sent nothing"):
                self._tell_silent(event)
            elif event.kind == "lost" and not own:
                self._joined.discard(event.rank)
                self._lose(RankStatus(event.rank, end=event.what))

    def _tell_silent(self, event: Event) -> None:
        seen = self._world.look_at(event.rank) if event.rank < self._start.size else None
        status = seen or RankStatus(event.rank)
        status.end = f"{event.what}, and {seen.how}" if seen else event.what
        self._lost.append({"rank": event.rank, "how": status.how})
        _print_lost(status)

    def _show(self, bar: tqdm[Any]) -> None:
        counts = self._lender.counts
        bar.total = counts.units or None
        rates = sorted(self._lender.rates.items())
        shown = [f"rank {rank} {rate:.1f}/s" for rank, rate in rates[:_RANKS_SHOWN]]
        more = [f"{len(rates) - _RANKS_SHOWN} more"] if len(rates) > _RANKS_SHOWN else []
        parts = [
            f"{counts.leased} leased, {counts.lost} lost, {counts.repeated} repeated",
            *shown,
            *more,
        ]
        bar.set_postfix_str(", ".join(parts), refresh=False)
        bar.update(counts.done - bar.n)


def _place(world: World) -> tuple[str | None, int, bytes]:
    """Return the address, port and key with which the lender listens."""
    if has_named_leader() and not world.attached:  # ranks of a launcher meet there themselves
        named = named_leader(LEASES)
        check_here(named)
        return named.host, named.port, named.key
    return world.address, 0, b""


def _run(
    world: World,
    job: EvalJob,
    lender: Address,
    groups: tuple[int, Path],
    joins: bool,
    going_on: Callable[[], bool],
    on_lost: Callable[[RankStatus], None],
    on_progress: Callable[[int, int, int | None], None] | None = None,
) -> Results:
    size = world.world_size
    works = [ElasticJob(job, lender, rank, size, joins, *groups) for rank in range(size)]
    return world.run(
        run_elastic_job, *works, until=lambda _: not going_on(), on_lost=on_lost,
        on_progress=on_progress, grace=_GRACE_SECONDS,
    )  # fmt: skip


def _first_report(results: Results) -> dict[str, Any]:
    """Return the report of the first rank that has one.

    Raises:
        HarnessError: What all ranks raised, or how they were lost.
    """
    if results.returned:
        found: dict[str, Any] = results[min(results.returned)]
        return found
    errors = {lost.rank: error for lost in results.lost if (error := lost.error) is not None}
    if len({(type(error), str(error)) for error in errors.values()}) == 1:
        raise next(iter(errors.values()))
    told = "; ".join(f"rank {lost.rank}: {lost.how}" for lost in results.lost)
    raise WorldError(
        f"no rank is left ({told}); see why the ranks were lost, and run the command again: with "
        f"--ledger it goes on from what was committed",
        errors,
        lost=[lost.rank for lost in results.lost],
    )


def _print_lost(lost: RankStatus) -> None:
    _tell(f"rank {lost.rank} was lost: {lost.how}")
    if is_verbose() and lost.hello is not None:
        tqdm.write(visible(str(lost.post_mortem)), file=sys.stderr)


def _tell(what: str) -> None:
    """Print one line on standard error, above the bar."""
    if not is_quiet():
        tqdm.write(visible(f"disteval eval: {what}".replace("\n", " ")), file=sys.stderr)


@contextmanager
def _bar(shown: bool) -> Iterator[tqdm[Any]]:
    with tqdm(unit=" batches", disable=None if shown else True) as bar:
        yield bar
