"""Audit every loop of the corpus, and print a table of what was found."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from importlib.metadata import version

from disteval.audit import Audit
from disteval.audit.findings import case_text

from suites.evalbugs.table import ENTRIES

DISTRIBUTIONS = {"ignite": "pytorch-ignite"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="the module with the loops, such as newest")
    parser.add_argument("names", nargs="*", help="the loops to audit; all by default")
    chosen = parser.parse_args()
    module = f"suites.evalbugs.{chosen.module}"
    importlib.import_module(module)
    unexpected = 0
    for entry in ENTRIES:
        if chosen.names and entry.name not in chosen.names:
            continue
        report = Audit(f"{module}:{entry.name}", timeout=15.0).run()
        release = version(DISTRIBUTIONS.get(entry.library, entry.library))
        as_expected = (report.verdict == "sound") == (entry.judged == "sound")
        unexpected += not as_expected
        found = [
            {"kind": f.kind, "case": case_text(f.settings), "sentence": f.sentence}
            for f in report.findings
        ]
        row = {
            "loop": entry.name, "library": f"{entry.library} {release}", "judged": entry.judged,
            "verdict": report.verdict, "cases": dict(report.counts), "findings": found,
            "reason": report.reason, "seconds": round(report.seconds, 1),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
