"""How long do the object collectives take, and how many bytes a second do they move?"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from disteval.errors import WorldError

from . import _ranks, _worlds

BACKENDS = ["threads", "torch_cpu", "mpi4py", "tf_horovod", "tf_collective", "jax", "paddle"]
OPERATIONS = {"all_gather_object": _ranks.gather, "broadcast_object": _ranks.broadcast}
ROUNDS = {64: 50, 4 << 10: 50, 1 << 20: 15, 64 << 20: 3}
"""The bytes that a rank sends, and how often it does."""
SMALL = [64, 4 << 10]
LARGE = [1 << 20, 64 << 20]
WORLD_SIZES = [2, 3]

Work = tuple[str, str, int, int]
"""The operation, the backend, the bytes and the world size; the parameters of each benchmark."""


class _Measured:
    """The rows of both benchmarks come from one measurement: worlds are started once for all."""

    param_names = ("operation", "backend", "bytes", "world_size")
    timeout = 60.0

    def setup_cache(self) -> dict[Work, Any]:
        """Every rank's times in seconds, or why there are none, for each row."""
        found: dict[Work, Any] = {}
        for backend, world_size in itertools.product(BACKENDS, WORLD_SIZES):
            rows = itertools.product(OPERATIONS, [backend], ROUNDS, [world_size])
            found |= _measure(backend, world_size, list(rows))
        return found

    setup_cache.timeout = 1800.0  # type: ignore[attr-defined]

    def setup(self, found: dict[Work, Any], *work: Any) -> None:
        """Take this row's times; skip it where the backend can't be had, fail where it failed."""
        times = found[work]
        if isinstance(times, Exception):
            raise times
        self.medians = [statistics.median(rank) for rank in times]
        self.every = list(itertools.chain.from_iterable(times))


class CollectiveLatency(_Measured):
    """Small messages, in microseconds; ``bytes`` is the size of the array that one rank sends."""

    params = (list(OPERATIONS), BACKENDS, SMALL, WORLD_SIZES)
    unit = "us"

    def track_median(self, _found: object, *_work: object) -> float:
        """Over all calls on all ranks."""
        return statistics.median(self.every) * 1e6

    def track_min(self, _found: object, *_work: object) -> float:
        """The median of the fastest rank."""
        return min(self.medians) * 1e6

    def track_avg(self, _found: object, *_work: object) -> float:
        """The average over ranks of each one's median."""
        return statistics.fmean(self.medians) * 1e6

    def track_max(self, _found: object, *_work: object) -> float:
        """The median of the slowest rank."""
        return max(self.medians) * 1e6


class CollectiveBandwidth(_Measured):
    """Large messages, in GB/s as nccl-tests defines them.

    With n ranks, an all-gather moves n times ``bytes``, and a broadcast ``bytes``. The time is the
    average over ranks of each one's median.
    """

    params = (list(OPERATIONS), BACKENDS, LARGE, WORLD_SIZES)
    unit = "GB/s"

    def track_algbw(self, _found: object, *work: Any) -> float:
        """Bytes over seconds: what a caller sees."""
        operation, _, size, world_size = work
        moved = size * world_size if operation == "all_gather_object" else size
        return moved / statistics.fmean(self.medians) / 1e9

    def track_busbw(self, found: object, *work: Any) -> float:
        """What each rank's link carries: can be held against hardware at any world size."""
        operation, _, _, world_size = work
        share = (world_size - 1) / world_size if operation == "all_gather_object" else 1.0
        return self.track_algbw(found, *work) * share


def _measure(backend: str, world_size: int, rows: list[Any]) -> dict[Any, Any]:
    """One world's rows; what went wrong, in place of the rows that it leaves without times."""
    found: dict[Any, Any] = {}
    try:
        with _worlds.start_world(backend, world_size) as world:
            for row in rows:
                operation, _, size, _ = row
                work = (size, ROUNDS[size])
                found[row] = world.run(OPERATIONS[operation], *[work] * world_size)
    except NotImplementedError as skipped:
        found = dict.fromkeys(rows, NotImplementedError(str(skipped)))
    except WorldError as error:
        # The others' times are good, and asv shows the report with each row that has none.
        found = dict.fromkeys(rows, RuntimeError(str(error))) | found
    return found
