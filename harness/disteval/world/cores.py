"""The cores, the memory and the processes of a host, which its ranks share."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from disteval.errors import UsageError

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's pool of threads on CPUs
)

# A rank that has imported torch has taken 1.4 s of a core and 144 MiB, and has 5 threads.
_RANKS_PER_CORE = 16
_MIB_PER_RANK = 150
_THREADS_PER_RANK = 8
_SPARE_FILES = 64  # for the files that are open for a moment, and the libraries


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


def check_room(ranks: int) -> None:
    """Refuse more ranks than there is room for on this host.

    Raises:
        UsageError: Says how many there is room for, and why.
    """
    most, scarce = room()
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks are too many for this machine: it has {scarce}; use up to {most}, or "
            f"--force to start them all the same, with a --timeout that is long enough"
        )


def check_open_files(ranks: int, each: int) -> None:
    """Refuse more ranks than this process may have files and connections for.

    Args:
        ranks: The number of ranks.
        each: How many open files the leader needs for each.

    Raises:
        UsageError: Says how many are needed and allowed.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _SPARE_FILES + ranks * each
    with suppress(OSError):  # there is no /proc here
        needed += len(list(Path("/dev/fd").iterdir()))
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise UsageError(
            f"{ranks} ranks need {needed} open files in this process, {each} for each rank, and "
            f"its limit is {limit}; raise it with `ulimit -n {needed}`, or start "
            f"{max(1, ranks - -(-(needed - limit) // each))} ranks at most"
        )


def room() -> tuple[int, str]:
    """Return how many ranks this host can start in a minute, hold in memory and have as processes.

    There is room for one rank at least. The text says what does not suffice for more.
    """
    cores, free, processes = available_cores(), _free_mib(), _most_processes()
    most, scarce = min(
        (cores * _RANKS_PER_CORE, f"{cores} core(s), for {_RANKS_PER_CORE} ranks each"),
        (free // _MIB_PER_RANK, f"{free} MiB of free memory, for {_MIB_PER_RANK} MiB a rank"),
        (
            processes // _THREADS_PER_RANK,
            f"a limit of {processes} processes and threads, for {_THREADS_PER_RANK} a rank",
        ),
    )
    return max(1, most), scarce


def _free_mib() -> int:
    kib = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemAvailable")]
    free = [int(number) << 10 for number in kib] + _numbers("/sys/fs/cgroup/memory.max")
    return min(free, default=1 << 60) >> 20


def _most_processes() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [] if limit == resource.RLIM_INFINITY else [limit]
    return min(limits + _numbers("/sys/fs/cgroup/pids.max"), default=1 << 60)


def _numbers(path: str) -> list[int]:
    """Return the numbers in a file of the kernel's, which may be missing or say that all goes."""
    return [int(line) for line in _lines(path) if line.isdigit()]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
