"""The checks of a run's arguments, made together on all ranks before anything begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disteval.arguments import check_choice, check_count
from disteval.errors import UsageError
from disteval.estimator import steps
from disteval.estimator.context import Context
from disteval.estimator.course import Flow
from disteval.estimator.loaders import check_exact, check_length

Workflow = Sequence[tuple[str, int]]


def agree(
    context: Context, loaders: Any, workflow: Any, max_epochs: int | None
) -> tuple[list[Flow], int | None]:
    """Check a run's arguments, and that all ranks were given the same; one collective.

    Returns:
        The workflow's entries with their loaders; and the epoch, or iteration, at which training
        ends, None where nothing is trained.

    Raises:
        UsageError: On every rank, when one rank's arguments can't work, or ranks were given
            different ones.
    """
    problem: str | None = None
    flows: list[Flow] = []
    end: int | None = None
    try:
        flows = _flows(context, loaders, workflow)
        end = _end(context, flows, max_epochs)
    except UsageError as error:  # sent to all ranks, so that no rank waits for this one
        problem = str(error)
    lengths = [len(flow.loader) for flow in flows]
    trained = [n for n, flow in zip(lengths, flows, strict=True) if flow.mode == "train"]
    given = ([flow[:2] for flow in flows], end, context.epoch, context.iter, trained)
    ranks = context.backend.all_gather_object((problem, given, lengths))
    for rank, (reason, _, _) in enumerate(ranks):
        if reason is not None:
            raise UsageError(reason if problem == reason else f"rank {rank}: {reason}")
    for rank, (_, other, _) in enumerate(ranks):
        if other != ranks[0][1]:
            raise UsageError(
                f"ranks were not given the same run: (workflow, limit, epoch, iteration, batches "
                f"of training) is {ranks[0][1]} on rank 0 and {other} on rank {rank}"
            )
    for at, flow in enumerate(flows):
        if not any(rank[2][at] for rank in ranks):
            raise UsageError(f"the loader of workflow entry {at}, {flow.mode!r}, has no batches")
    return flows, end


def check_workflow(workflow: Any) -> list[tuple[str, int]]:
    """Return the entries of a workflow; UsageError if they are not pairs of a mode and a count."""
    if not isinstance(workflow, Sequence) or isinstance(workflow, str) or not workflow:
        raise UsageError(
            f"a workflow is a list such as [('train', 1), ('val', 1)], not {workflow!r}"
        )
    entries = []
    for entry in workflow:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise UsageError(f"a workflow's entry is a pair such as ('train', 1), not {entry!r}")
        mode = check_choice("the workflow's mode", entry[0], ("train", "val"))
        entries.append((mode, check_count(f"the workflow's count for {mode!r}", entry[1])))
    return entries


def _flows(context: Context, loaders: Any, workflow: Any) -> list[Flow]:
    entries = check_workflow(workflow)
    if not isinstance(loaders, Sequence) or len(loaders) != len(entries):
        given = len(loaders) if isinstance(loaders, Sequence) else repr(loaders)
        raise UsageError(
            f"a workflow of {len(entries)} entries needs a list of as many loaders, not {given}"
        )
    flows = []
    for at, ((mode, times), loader) in enumerate(zip(entries, loaders, strict=True)):
        check_length(loader, f"the loader of workflow entry {at}, {mode!r},")
        if mode == "val":
            check_exact(loader)
        flows.append(Flow(mode, times, loader))
    reason = steps.why_not(context, {flow.mode for flow in flows})
    if reason is not None:
        raise UsageError(reason)
    return flows


def _end(context: Context, flows: list[Flow], max_epochs: int | None) -> int | None:
    epochs = context.max_epochs if max_epochs is None else max_epochs
    trained = [flow.loader for flow in flows if flow.mode == "train"]
    if epochs is not None:
        check_count("max_epochs", epochs)
    if context.by_epoch:
        end, unit = epochs, "max_epochs"
    else:
        end, unit = context.max_iters, "max_iters"
        if trained and epochs is not None:
            end = epochs * max(len(trained[0]), 1)  # an empty loader is refused elsewhere
    if end is None and trained:
        raise UsageError(
            f"a workflow that trains needs an end: give {type(context).__name__} {unit}"
        )
    return None if end is None else check_count(unit, end)
