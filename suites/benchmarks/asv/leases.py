"""What does it cost to keep what was done, and an evaluation in leases its ranks?"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
from disteval.coverage import Counted
from disteval.ledger import Ledger, Part

from . import _ranks, _worlds

ROUNDS = 5
BATCHES = 1_000


class LedgerCost:
    """The time of writing a lease to the disk that has temporary files."""

    params = ([1, 100],)
    param_names = ("leases_together",)

    def track_commit(self, together: int) -> float:
        """Return the median round, waiting for the disk included."""
        return _median(lambda: self._once(together))

    track_commit.unit = "us"  # type: ignore[attr-defined]

    def _once(self, together: int) -> float:
        counted, leases = Counted(np.arange(16)), max(20, together)
        part = Part(0, counted.packed(), counted.certificate(), bytes(500))
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger(folder, {})
            begin = time.perf_counter()
            for first in range(0, leases, together):
                with ledger.log.together():
                    for _ in range(first, first + together):
                        ledger.commit(part)
            seconds = time.perf_counter() - begin
            ledger.close()
        return seconds / leases


class LeasedEvaluation(_worlds.InWorld):
    """The time that `evaluate` takes for a batch whose model is free, on two ranks."""

    params = (["static", "leases"], ["threads", "torch_cpu"])
    param_names = ("schedule", "backend")

    def setup(self, _schedule: str, backend: str) -> None:
        self.start(backend, 2)

    def track_batch(self, schedule: str, _backend: str) -> float:
        """Return the median round of the slower rank, divided by the batches of both."""
        found = self.run(_ranks.schedule_seconds, (schedule, BATCHES, ROUNDS))
        return max(statistics.median(rank) for rank in found) / BATCHES * 1e6

    track_batch.unit = "us"  # type: ignore[attr-defined]


def _median(once: Callable[[], float]) -> float:
    return 1e6 * statistics.median(once() for _ in range(ROUNDS))
