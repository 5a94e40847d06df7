"""Audit the loops that are right, and say which were not found sound; see ``nox -s sound``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from disteval.audit import Audit

from suites.audit.sound import LOOPS


def main() -> int:
    """Audit the loops that are named, or all, and return 1 if one is not found sound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of loops; all by default")
    parser.add_argument("--seconds", type=float, default=1200.0, help="the limit of each audit")
    chosen = parser.parse_args()
    for path in sorted(Path(__file__).parent.glob("*_loops.py")):
        import_module(f"{__package__}.{path.stem}")
    names = chosen.names or [""]
    those = {loop: library for loop, library in LOOPS.items() if any(n in loop for n in names)}
    if not those:
        parser.error("no loop has such a name")
    others = []
    for loop, library in those.items():
        report = Audit(loop, timeout=60.0, seconds=chosen.seconds, first=True).run()
        tried = f"{report.counts['right'] + report.counts['wrong']} cases, {report.seconds:.0f} s"
        print(f"{loop}: {library} {version(library)}: {report.verdict} ({tried})", flush=True)
        if report.verdict != "sound":
            others.append(loop)
            print(*report.findings, report.reason, report.details, sep="\n", flush=True)
    print(f"{len(those) - len(others)} of {len(those)} are sound")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
