"""How long do the object collectives take, and how long for each GB?"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from disteval.errors import WorldError

from . import _ranks, _worlds

BACKENDS = ["threads", "torch_cpu", "mpi4py", "tf_horovod", "tf_collective", "jax", "paddle", "mlx"]
OPERATIONS = {"all_gather_object": _ranks.gather, "broadcast_object": _ranks.broadcast}
ROUNDS = {64: 50, 4 << 10: 50, 1 << 20: 15, 64 << 20: 3}
"""The bytes that a rank sends, and the number of rounds."""
SMALL = [64, 4 << 10]
LARGE = [1 << 20, 64 << 20]
WORLD_SIZES = [2, 3]

Work = tuple[str, str, int, int]
"""The parameters of each benchmark: operation, backend, bytes and world size."""


class _Measured:
    """The base of both benchmarks, which measures all rows once so that worlds start only once."""

    param_names = ("operation", "backend", "bytes", "world_size")
    timeout = 60.0

    def setup_cache(self) -> dict[Work, Any]:
        """Return for each row the seconds of every rank, or the reason why there are no times."""
        found: dict[Work, Any] = {}
        for backend, world_size in itertools.product(BACKENDS, WORLD_SIZES):
            rows = itertools.product(OPERATIONS, [backend], ROUNDS, [world_size])
            found |= _measure(backend, world_size, list(rows))
        return found

    setup_cache.timeout = 1800.0  # type: ignore[attr-defined]

    def setup(self, found: dict[Work, Any], *work: Any) -> None:
        """Take the times of this row; skip or fail if they could not be measured."""
        times = found[work]
        if isinstance(times, Exception):
            raise times
        self.medians = [statistics.median(rank) for rank in times]
        self.every = list(itertools.chain.from_iterable(times))


class CollectiveLatency(_Measured):
    """The latency of small messages; ``bytes`` is the size of the array that one rank sends."""

    params = (list(OPERATIONS), BACKENDS, SMALL, WORLD_SIZES)
    unit = "us"

    def track_median(self, _found: object, *_work: object) -> float:
        """Return the median over all calls on all ranks."""
        return statistics.median(self.every) * 1e6

    def track_min(self, _found: object, *_work: object) -> float:
        """Return the median of the fastest rank."""
        return min(self.medians) * 1e6

    def track_avg(self, _found: object, *_work: object) -> float:
        """Return the average of the ranks' medians."""
        return statistics.fmean(self.medians) * 1e6

    def track_max(self, _found: object, *_work: object) -> float:
        """Return the median of the slowest rank."""
        return max(self.medians) * 1e6


class CollectiveTransfer(_Measured):
    """The time of large messages for each GB, the inverse of the bandwidths of nccl-tests.

    With n ranks, an all-gather moves n times ``bytes``, and a broadcast ``bytes``. The time is the
    average over ranks of each one's median.
    """

    params = (list(OPERATIONS), BACKENDS, LARGE, WORLD_SIZES)
    unit = "ms"

    def track_alg(self, _found: object, *work: Any) -> float:
        """Return the milliseconds for a GB that a caller sees: 1000 / algbw."""
        operation, _, size, world_size = work
        moved = size * world_size if operation == "all_gather_object" else size
        return statistics.fmean(self.medians) / moved * 1e12

    def track_bus(self, found: object, *work: Any) -> float:
        """Return the milliseconds for a GB on each rank's link: 1000 / busbw."""
        operation, _, _, world_size = work
        share = (world_size - 1) / world_size if operation == "all_gather_object" else 1.0
        return self.track_alg(found, *work) / share


def _measure(backend: str, world_size: int, rows: list[Any]) -> dict[Any, Any]:
    """Measure the rows of one world; a row without times gets the error instead."""
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
