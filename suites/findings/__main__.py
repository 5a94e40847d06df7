"""Run findings and the programs of their reports again; see ``nox -s findings``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from suites.findings.replay import replay
from suites.findings.table import Finding, environments, findings


def main() -> int:
    """Replay the findings that are named, or all, and return 1 if one is not as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slugs", nargs="*", help="names of findings; all by default")
    parser.add_argument("--environment", choices=environments(), help="only those of this one")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--minutes", type=float, default=60.0, help="none begins after these")
    chosen = parser.parse_args()
    if unknown := {*chosen.slugs} - {one.slug for one in findings()}:
        parser.error(f"no finding is called {', '.join(sorted(unknown))}; see --list")
    those = [
        one
        for one in findings()
        if (not chosen.slugs or one.slug in chosen.slugs)
        and chosen.environment in (None, one.environment)
    ]
    if chosen.list:
        print("\n".join(one.slug for one in those))
        return 0
    end = time.monotonic() + chosen.minutes * 60
    differing = [one.slug for one in those if not _is_as_known(one, end)]
    print(f"{len(those) - len(differing)} of {len(those)} are as known")
    if differing:
        print(f"not as known: {', '.join(differing)}")
    return 1 if differing else 0


def _is_as_known(one: Finding, end: float) -> bool:
    begin = time.monotonic()
    if begin > end:
        print(f"{one.slug}: not tried in time", flush=True)
        return False
    with tempfile.TemporaryDirectory() as folder:
        differences = replay(one, Path(folder))
    sign = "DIFFERS" if differences else "as known"
    print(f"{one.slug}: {one.library}: {sign} ({time.monotonic() - begin:.0f} s)", flush=True)
    print("".join(f"{text}\n" for text in differences), end="", flush=True)
    return not differences


if __name__ == "__main__":
    sys.exit(main())
