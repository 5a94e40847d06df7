"""``disteval eval`` without ``--elastic``: ranks of a backend, in lock step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from disteval.cli.job import EvalJob, run_job
from disteval.cli.options import chosen_interface
from disteval.traces import TraceFolder
from disteval.world import Launcher, OuterWorld, World
from disteval.world.launchers.outer import OuterLauncher


@dataclass(frozen=True)
class Starter:
    """The way to start or join the ranks of an evaluation.

    Attributes:
        size: The number of ranks.
        launcher: How to start them; None stands for the backend's launcher.
        outer: The worker group that a launcher put this process in; None if there is none.
        timeout: Seconds without progress.
        threads: Computing threads of each rank.
        progress: Whether a bar is shown.
        trace: Where a trace is recorded; None records none.
    """

    size: int
    launcher: str | Launcher | None
    outer: OuterWorld | None
    timeout: float
    threads: int | None
    progress: bool
    trace: TraceFolder | None

    def elastic_world(self, size: int) -> World:
        """Return a world of so many ranks, which may be lost."""
        if self.outer is None:
            how = self.launcher or "local"
        else:
            how = OuterLauncher(self.outer, chosen_interface())
        return World(
            None, size, launcher=how, on_lost="continue", timeout=self.timeout,
            threads=self.threads, trace=self.trace,
        )  # fmt: skip


def evaluate_in_step(start: Starter, job: EvalJob) -> dict[str, Any]:
    """Run the job on every rank, and return the report of rank 0."""
    if start.outer is None:
        world = World(
            job.backend, start.size, launcher=start.launcher, timeout=start.timeout,
            threads=start.threads, trace=start.trace,
        )  # fmt: skip
    else:
        world = World.lead(start.outer, start.timeout, chosen_interface(), start.trace)
    with world:
        if start.outer is not None:
            world.join(job.backend)
        job = replace(job, shares_memory=not world.own_processes and not world.attached)
        report = _run(world, job, start.size, start.progress)
        if start.outer is not None:
            world.leave()
    return report


def _run(world: World, job: EvalJob, size: int, progress: bool) -> dict[str, Any]:
    """Run the job on every rank, and return the report of rank 0."""
    done: dict[int, int] = {}
    totals: dict[int, int] = {}
    # A bar is for terminals (disable=None), not for log files.
    with tqdm(unit=" samples", disable=None if progress else True) as bar:

        def show(rank: int, rank_done: int, rank_total: int | None) -> None:
            done[rank] = rank_done
            if rank_total is not None:  # that of a stream is not known
                totals[rank] = rank_total
            # Without a total the bar has the rate, and no time left.
            bar.total = sum(totals.values()) if len(totals) == size else None
            bar.update(sum(done.values()) - bar.n)

        reports: list[dict[str, Any]] = world.run(run_job, *[job] * size, on_progress=show)
    if "task" in reports[0]:
        ranks = [
            {"samples": done.get(rank, 0), "seconds": report["seconds"]}
            for rank, report in enumerate(reports)
        ]
        reports[0]["ranks"] = ranks
    return reports[0]
