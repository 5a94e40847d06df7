"""Evaluation loops over mpi4py's own communicator, wrong ones and right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from disteval.audit import Case
from mpi4py import MPI

from suites.audit.parts import batches, batches_of_one, counted, predicted, strided

WRONG = {
    "reduces_a_mean": ("weighted wrongly", "N=1,B=1,W=2"),
    "scatters_equal_parts": ("dropped", "N=1,B=1,W=2"),
    "reduces_to_rank_0_alone": ("ranks disagree", "N=1,B=1,W=2"),
    "gathers_rank_by_rank": ("outputs in another order", "N=3,B=1,W=2"),
}
"""The kind and the case of each wrong loop's first finding."""

RIGHT = ("gathers_unequal_parts", "asks_rank_0_for_work")


def reduces_a_mean(case: Case) -> Any:
    """Return the mean of the ranks' means; wrong."""
    right, seen = counted(case, strided(case))
    total = MPI.COMM_WORLD.allreduce(right / max(seen, 1))
    return {"accuracy": total / case.world_size}


def scatters_equal_parts(case: Case) -> Any:
    """Scatter as many whole shares as fit, and forget the rest; wrong."""
    own = np.empty(len(case.dataset) // case.world_size, np.int64)
    order = np.arange(len(own) * case.world_size) if case.rank == 0 else None
    MPI.COMM_WORLD.Scatter(order, own)
    return {"count": MPI.COMM_WORLD.allreduce(counted(case, own.tolist())[1])}


def reduces_to_rank_0_alone(case: Case) -> Any:
    """Sum on rank 0, and return from all ranks what each then has; wrong."""
    sums = np.array(counted(case, strided(case)), float)
    total = np.copy(sums)
    MPI.COMM_WORLD.Reduce(sums, total, root=0)
    return {"accuracy": total[0] / max(total[1], 1.0), "count": len(case.dataset)}


def gathers_rank_by_rank(case: Case) -> Any:
    """Gather the predictions of strided shares, and take them for those of the data set; wrong."""
    own = [out for batch in batches_of_one(case) for out in predicted(case, batch)]
    parts = MPI.COMM_WORLD.gather(own, root=0)
    if parts is None:
        return None
    return {"outputs": [out for part in parts for out in part], "ordered": True}


def gathers_unequal_parts(case: Case) -> Any:
    """Gather shares of unequal lengths into their places; right."""
    cuts = [len(case.dataset) * rank // case.world_size for rank in range(case.world_size + 1)]
    own = range(cuts[case.rank], cuts[case.rank + 1])
    found = [out for batch in batches(case, own) for out in predicted(case, batch)]
    together = np.empty(len(case.dataset), np.int64)
    sizes = np.diff(cuts).tolist()
    MPI.COMM_WORLD.Allgatherv(np.array(found, np.int64), (together, sizes))
    return {"outputs": together, "ordered": True}


def asks_rank_0_for_work(case: Case) -> Any:
    """Let rank 0 deal batches to whoever asks for one, and evaluate none itself; right."""
    world = MPI.COMM_WORLD
    found = np.zeros(2, np.int64)
    indices = list(range(len(case.dataset)))
    if world.size == 1:
        found += counted(case, indices)
    elif world.rank == 0:
        begins = iter([*range(0, len(indices), case.batch_size), *[-1] * (world.size - 1)])
        for begin in begins:
            status = MPI.Status()
            world.recv(source=MPI.ANY_SOURCE, status=status)
            world.send(begin, dest=status.Get_source())
    else:
        while (begin := world.sendrecv(None, dest=0, source=0)) >= 0:
            found += counted(case, indices[begin : begin + case.batch_size])
    right, seen = world.allreduce(found)
    return {"accuracy": right / seen, "count": int(seen)}
