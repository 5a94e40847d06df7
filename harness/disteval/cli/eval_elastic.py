"""``disteval eval --elastic``: the leader lends leases to ranks, any of which may be lost."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
            return _first_report(_run(world, job, options, _print_lost, lender))
        return _Leader(world, start, job, options, stack).run()


class _Leader:
    """The leader's side of one evaluation."""

    def __init__(
        self, world: World, start: Starter, job: EvalJob, options: Elastic, stack: ExitStack
    ) -> None:
        self._world, self._start, self._job, self._options = world, start, job, options
        self._done = dict.fromkeys(range(start.size), 0)  # samples of each own rank
        self._lost: list[dict[str, Any]] = []
        self._lender = Lender(
            options.ledger,
            timeout=start.timeout,
            ranks_per_lease=options.ranks_per_lease,
            expected=None if world.restarts else start.size,
            on_event=self._take_event,
            predictions=job.predictions,
        )
        stack.callback(self._lender.close)
        self._stack = stack
        self._address = world.lend(self._lender, _named(world))
        self._announced = options.ledger is None

    def run(self) -> dict[str, Any]:
        """Run the evaluation, and return its report."""
        with _bar(self._start.progress) as bar:

            def is_over(_: Results) -> bool:
                self._show(bar)
                return self._lender.outcome is not None

            results = _run(
                self._world, self._job, self._options, self._lose, None, is_over, self._count
            )
        outcome = self._lender.outcome
        if outcome is not None and outcome.error is not None:
            raise pickle.loads(outcome.error)
        if not results.returned and outcome is not None:
            # Ranks that others have started made the result; a new one gets it at once.
            with self._start.elastic_world(1) as another:
                another.lend(self._lender)
                results = _run(another, self._job, self._options, _print_lost)
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

    def _lose(self, lost: RankStatus) -> None:
        outcome = self._lender.outcome
        if outcome is not None and outcome.error is not None and lost.error is not None:
            return  # every rank raises why the evaluation has failed
        self._lost.append({"rank": lost.rank, "how": lost.how})
        _print_lost(lost)

    def _take_event(self, event: Event) -> None:
        others = event.rank >= self._start.size
        if not (self._announced or self._lender.outcome) and self._options.ledger is not None:
            # The ledger is open, so no other leader has it.
            self._stack.enter_context(announced(self._address, self._options.ledger))
            self._announced = True
        if event.kind == "joined" and others:
            _tell(f"rank {event.rank} has joined: {event.what}")
        elif event.kind == "failed":
            _tell(f"rank {event.rank} {event.what}; it gets no more leases")
        elif event.kind == "slow":
            _tell(f"rank {event.rank} {event.what}")
        elif event.kind == "lost" and event.what.startswith("sent nothing"):
            self._tell_silent(event)
        elif event.kind == "lost" and others:
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


def _named(world: World) -> Address | None:
    """Return where others join, if the user has named a place for that."""
    if not has_named_leader() or world.attached:  # ranks of a launcher meet there themselves
        return None
    named = named_leader(LEASES)
    check_here(named)
    return named


def _run(
    world: World,
    job: EvalJob,
    options: Elastic,
    on_lost: Callable[[RankStatus], None],
    lender: Address | None = None,
    until: Callable[[Results], bool] = lambda _: False,
    on_progress: Callable[[int, int, int | None], None] | None = None,
) -> Results:
    size = world.world_size
    works = [
        ElasticJob(job, lender, rank, size, options.ranks_per_lease, world.folder)
        for rank in range(size)
    ]
    return world.run(
        run_elastic_job, *works, until=until, on_lost=on_lost, on_progress=on_progress,
        grace=_GRACE_SECONDS,
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
