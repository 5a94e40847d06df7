"""What does an audit take for each call of the audited loop?"""

from __future__ import annotations

import statistics

from disteval.audit import Audit

from . import _ranks, _worlds

ROUNDS = 3
WORLD_SIZES = (1, 2)


class AuditCost:
    """The time of a whole audit of a right loop that takes no time, for each call of the loop."""

    params = (["threads", "torch_cpu"],)
    param_names = ("backend",)
    timeout = 300.0

    def setup(self, backend: str) -> None:
        _worlds.require_backend(backend, max(WORLD_SIZES))

    def track_call(self, backend: str) -> float:
        """Return the median of three audits, each of which must find the loop sound."""
        found = []
        for _ in range(ROUNDS):
            calls: list[int] = []
            count = _ranks.count_once
            report = Audit(
                count, WORLD_SIZES, backend, on_step=lambda done, _, calls=calls: calls.append(done)
            ).run()
            if report.verdict != "sound":
                raise AssertionError(f"a right loop was called {report.verdict}")
            found.append(report.seconds / len(calls) * 1e3)
        return statistics.median(found)

    track_call.unit = "ms"  # type: ignore[attr-defined]
