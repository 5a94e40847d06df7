"""Measure how long `disteval audit` takes with gloo ranks, for a right loop and for a wrong one.

python -m suites.benchmarks.audits [--right-ms 30] [--wrong-ms 200]

Issue 18 asks for a sound verdict of a loop of 30 ms a call in less than 60 s, and for the first
finding of a loop of 200 ms a call in less than 60 s, both on two quiet cores. Every call takes as
long, so the sum of the calls is what no audit can go below; the rest is the audit's own. The wrong
loop is one whose defect shows in the very last case that is begun, which is the worst for an audit.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Audit, Case, Report
from disteval.audit.worlds import AuditWorlds

SECONDS = "DISTEVAL_SECONDS_A_CALL"
_LAST = 2051


def right(case: Case) -> Any:
    """Count every sample once, and take as long as the environment says."""
    end = time.monotonic() + float(os.environ[SECONDS])
    counted = torch.tensor(float(len(range(case.rank, len(case.dataset), case.world_size))))
    dist.all_reduce(counted)
    time.sleep(max(0.0, end - time.monotonic()))
    return {"count": counted}


def wrong(case: Case) -> Any:
    """Count one sample more where there are most samples and ranks."""
    found = right(case)
    found["count"] += len(case.dataset) == _LAST and case.world_size == 3
    return found


class _Counted(AuditWorlds):
    """The worlds of an audit, which count their calls and starts."""

    calls = starts = 0

    def call(self, *args: Any) -> Any:
        _Counted.calls += 1
        return super().call(*args)

    def _start(self, world_size: int) -> Any:
        _Counted.starts += 1
        return super()._start(world_size)


def measure(name: str, milliseconds: float) -> Report:
    """Audit a loop, and print its figures."""
    os.environ[SECONDS] = str(milliseconds / 1e3)
    audit = Audit(f"suites.benchmarks.audits:{name}", first=True, seconds=600.0)
    _Counted.calls = _Counted.starts = 0
    audit._worlds.__class__ = _Counted
    before = _processor_seconds()
    report = audit.run()
    tried = report.counts["right"] + report.counts["wrong"]
    least = _Counted.calls * milliseconds / 1e3
    own = _processor_seconds() - before
    print(
        f"{name}, {milliseconds:g} ms a call: {report.verdict} after {report.seconds:.1f} s; "
        f"{tried} cases, {_Counted.calls} calls ({least:.1f} s), {_Counted.starts} worlds, "
        f"{own:.1f} s of processor time",
        flush=True,
    )
    return report


def _processor_seconds() -> float:
    """Return the seconds that this process and the ranks that have ended have computed."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--right-ms", type=float, default=30.0)
    parser.add_argument("--wrong-ms", type=float, default=200.0)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if measure("right", chosen.right_ms).verdict != "sound":
        raise SystemExit("the right loop was not called sound")
    if measure("wrong", chosen.wrong_ms).verdict != "wrong":
        raise SystemExit("the wrong loop was not convicted")


if __name__ == "__main__":
    main()
