"""The record of a phase: what was done and found on all ranks together, the same on each.

========================  =====================================================================
``epoch``, ``iter``       passes and iterations that were trained when the phase had ended
``mode``                  ``train`` or ``val``
``num_samples``           samples on all ranks
``loss``, each log_var    mean over all ranks' batches, weighted by samples, rounded once
``lr``                    train: the first parameter group's learning rate at the last iteration
``images_per_second``     samples divided by seconds
``seconds``               the time that the slowest rank took
``accuracy``              val, where the step returns scores and labels: ``correct / evaluated``
``correct``               samples whose label has the best score, an integer
``evaluated``             samples with a score, an integer
========================  =====================================================================
"""

from __future__ import annotations

from typing import Any

from disteval.estimator.context import Context
from disteval.estimator.log_buffer import LogBuffer, averages

Record = dict[str, Any]


def gather_record(
    context: Context, mode: str, buffer: LogBuffer, samples: int, seconds: float, scored: int = 0
) -> tuple[Record, list[int]]:
    """Make the record of a phase with one collective; every rank must call this.

    Args:
        context: The runner, whose backend, epoch and iteration are used.
        mode: ``train`` or ``val``.
        buffer: The variables that the phase's steps reported on this rank.
        samples: This rank's samples.
        seconds: This rank's time.
        scored: This rank's samples with a score.

    Returns:
        The record, and every rank's ``scored``.
    """
    ranks = context.backend.all_gather_object((samples, seconds, scored, buffer.sums()))
    total, slowest = sum(rank[0] for rank in ranks), max(rank[1] for rank in ranks)
    epoch, iteration = context.trained()
    record: Record = {"epoch": epoch, "iter": iteration, "mode": mode, "num_samples": total}
    record |= averages([rank[3] for rank in ranks])
    if mode == "train" and context.optimizer is not None:
        record["lr"] = context.first_lr()
    record["images_per_second"] = total / slowest if slowest else 0.0
    record["seconds"] = slowest
    return record, [rank[2] for rank in ranks]
