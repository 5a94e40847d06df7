"""What does an evaluation in leases cost its ranks?"""

from __future__ import annotations

import statistics

from . import _ranks, _worlds

ROUNDS = 5
BATCHES = 1_000


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
