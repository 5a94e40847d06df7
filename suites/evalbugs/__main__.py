"""Audit the loops of the corpus, and hold each verdict to the table."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version

from disteval.audit import Audit, Report

from suites.findings.table import Entry, entries, environments, installed


def main() -> int:
    """Audit the loops that are named, or all, and return 1 if one is not judged as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of loops; all by default")
    parser.add_argument(
        "--environment", default="newest", choices=environments(),
        help="audit the loops whose libraries this environment installs",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=300.0, help="the limit of each audit")
    parser.add_argument("--minutes", type=float, default=60.0, help="no audit begins after these")
    chosen = parser.parse_args()
    unexpected = []
    those = [one for one in entries().values() if _is_chosen(one, chosen.names, chosen.environment)]
    if not those:
        parser.error("no loop has such a name and a library that this environment installs")
    end = time.monotonic() + chosen.minutes * 60
    for entry in those:
        if time.monotonic() > end:
            print(f"{entry.loop}: not tried within {chosen.minutes:g} minutes")
            unexpected.append(entry.loop)
            continue
        # The first finding of a wrong loop is the smallest; a right loop needs every case.
        target = f"suites.evalbugs.{entry.loop}"
        report = Audit(target, timeout=60.0, seconds=chosen.seconds, first=True).run()
        expected, found = _expected(entry), _found(report)
        sign = "as expected" if found == expected else f"EXPECTED {expected}"
        tried = f"{report.counts['right'] + report.counts['wrong']} cases, {report.seconds:.0f} s"
        release = f"{entry.library} {version(entry.library)}"
        print(f"{entry.loop}: {release}: {found}: {sign} ({tried})", flush=True)
        for finding in report.findings:
            print(f"    {finding}", flush=True)
        if found != expected:
            unexpected.append(entry.loop)
            print(f"    {report.reason}\n{report.details}", flush=True)
    if unexpected:
        print(f"not as expected: {', '.join(unexpected)}")
    return 1 if unexpected else 0


def _is_chosen(entry: Entry, names: list[str], environment: str) -> bool:
    if names and not any(name in entry.loop for name in names):
        return False
    return installed(entry.library, entry.release)[1] == environment


def _expected(entry: Entry) -> str:
    return f"{entry.kind} at {entry.case}" if entry.kind else "sound"


def _found(report: Report) -> str:
    if not report.findings:
        return report.verdict
    first = report.to_json()["findings"][0]
    return f"{first['kind']} at {first['case']}"


if __name__ == "__main__":
    sys.exit(main())
