"""What a run is to do, checked on all ranks before anything begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from disteval.arguments import check_choice, check_count
from disteval.errors import UsageError
from disteval.estimator import steps
from disteval.estimator.hooks.evaluation import check_exact

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

MODES = ("train", "val")
Workflow = Sequence[tuple[str, int]]


class Flow(NamedTuple):
    """An entry of a workflow and its loader.

    Attributes:
        mode: ``train`` or ``val``.
        times: Its epochs or iterations in each turn of the workflow.
        loader: This rank's batches.
    """

    mode: str
    times: int
    loader: Any


def agree(
    runner: BaseRunner, loaders: Any, workflow: Any, max_epochs: int | None
) -> tuple[list[Flow], int | None]:
    """Check a run's arguments, and that all ranks were given the same; one collective.

    Args:
        runner: What runs it.
        loaders: One loader for each entry of the workflow.
        workflow: Pairs of a mode and a count.
        max_epochs: Where the run is to end; None for what the runner says.

    Returns:
        The workflow's entries with their loaders; and where the run ends, in the runner's unit.

    Raises:
        UsageError: On every rank, when one rank's arguments can't work, or ranks were given
            different ones.
    """
    problem: str | None = None
    flows: list[Flow] = []
    limit: int | None = None
    try:
        flows = _flows(runner, loaders, workflow)
        limit = _limit(runner, flows, max_epochs)
    except UsageError as error:  # told to all ranks, so that none waits for this one
        problem = str(error)
    lengths = [len(flow.loader) for flow in flows]
    trained = [n for n, flow in zip(lengths, flows, strict=True) if flow.mode == "train"]
    told = ([flow[:2] for flow in flows], limit, runner.epoch, runner.iter, trained)
    ranks = runner.backend.all_gather_object((problem, told, lengths))
    _raise_alike([rank[0] for rank in ranks], runner.rank)
    for rank, (_, other, _) in enumerate(ranks):
        if other != ranks[0][1]:
            raise UsageError(
                f"ranks were not given the same run: (workflow, limit, epoch, iteration, batches "
                f"of training) is {ranks[0][1]} on rank 0 and {other} on rank {rank}"
            )
    for at, flow in enumerate(flows):
        if not any(rank[2][at] for rank in ranks):
            raise UsageError(f"the loader of workflow entry {at}, {flow.mode!r}, has no batches")
    return flows, limit


def _raise_alike(problems: Sequence[str | None], rank: int) -> None:
    found = [(r, problem) for r, problem in enumerate(problems) if problem is not None]
    if not found:
        return
    first, problem = found[0]
    raise UsageError(problem if problems[rank] == problem else f"rank {first}: {problem}")


def _flows(runner: BaseRunner, loaders: Any, workflow: Any) -> list[Flow]:
    entries = _entries(workflow)
    if not isinstance(loaders, Sequence) or len(loaders) != len(entries):
        given = len(loaders) if isinstance(loaders, Sequence) else repr(loaders)
        raise UsageError(
            f"a workflow of {len(entries)} entries needs a list of as many loaders, not {given}"
        )
    modes = {mode for mode, _ in entries}
    reason = steps.why_not(runner.model, runner.batch_processor, modes, runner.world_size)
    if reason is not None:
        raise UsageError(reason)
    for at, ((mode, _), loader) in enumerate(zip(entries, loaders, strict=True)):
        _check_loader(loader, f"the loader of workflow entry {at}, {mode!r},")
        if mode == "val":
            check_exact(loader)
    return [Flow(*entry, loader) for entry, loader in zip(entries, loaders, strict=True)]


def _limit(runner: BaseRunner, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
    if max_epochs is not None:
        check_count("max_epochs", max_epochs)
    limit = runner.end_of(flows, max_epochs)
    if limit is not None:
        return check_count(runner.limited_by, limit)
    if any(flow.mode == "train" for flow in flows):
        raise UsageError(
            f"a workflow that trains needs an end: give {type(runner).__name__} {runner.limited_by}"
        )
    return None


def _entries(workflow: Any) -> list[tuple[str, int]]:
    if not isinstance(workflow, Sequence) or isinstance(workflow, str) or not workflow:
        raise UsageError(f"a workflow is a list such as [('train', 1), ('val', 1)], not {workflow}")
    for entry in workflow:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise UsageError(f"a workflow's entry is a pair such as ('train', 1), not {entry!r}")
        mode, count = entry
        check_choice("the workflow's mode", mode, MODES)
        check_count(f"the workflow's count for {mode!r}", count)
    return [(mode, count) for mode, count in workflow]


def _check_loader(loader: Any, what: str) -> None:
    try:
        length = len(loader)
    except TypeError as error:
        raise UsageError(f"{what} has no length ({error}); give one with len(), in batches") from (
            error
        )
    if length and not hasattr(loader, "__iter__"):
        raise UsageError(f"{what} is {type(loader).__name__}, which gives no batches")
