"""What does an audit take for each call of the audited loop?"""

from __future__ import annotations

import statistics
from typing import Any

from disteval.audit import Audit
from disteval.audit.worlds import AuditWorlds

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
            audit = Audit(_ranks.count_once, WORLD_SIZES, backend=backend)
            audit._worlds.__class__ = _Counting
            _Counting.calls = 0
            report = audit.run()
            if report.verdict != "sound":
                raise AssertionError(f"a right loop was called {report.verdict}")
            found.append(report.seconds / _Counting.calls * 1e3)
        return statistics.median(found)

    track_call.unit = "ms"  # type: ignore[attr-defined]


class _Counting(AuditWorlds):
    """The worlds of an audit, which count their calls."""

    calls = 0

    def call(self, *args: Any) -> Any:
        _Counting.calls += 1
        return super().call(*args)
