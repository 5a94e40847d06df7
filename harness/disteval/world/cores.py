"""The cores of a host, which its ranks share."""

from __future__ import annotations

import os

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's pool of threads on CPUs
)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_variables(ranks_on_host: int, threads: int | None = None) -> dict[str, str]:
    """Return the environment variables that set the computing threads of each rank.

    Ranks that each take every core of a host slow one another down many times over.

    Args:
        ranks_on_host: How many ranks share this host's cores.
        threads: Threads a rank; None shares the cores evenly, at least one each, unless the user's
            environment already sets ``OMP_NUM_THREADS``.
    """
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return {}
    each = threads or max(1, available_cores() // ranks_on_host)
    return {variable: str(each) for variable in _VARIABLES}
