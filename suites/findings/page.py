"""Write the tables of docs/findings.md from the findings, between the markers there.

``python -m suites.findings.page`` writes; with ``--check`` it exits with 1 where the page is not
what would be written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from suites.findings.table import ROOT, Finding, findings

PAGE = ROOT / "docs" / "findings.md"
_PART = re.compile(r"(<!-- (\w+), written by suites/findings/page.py -->\n).*?(<!-- end -->)", re.S)
_THREAD = re.compile(r"github\.com/[\w.-]+/([\w.-]+)/(?:issues|pull)/(\d+)")


def whole(page: str) -> str:
    """Return the page with new tables."""
    parts = {"counts": _counts, "rules": _rules, "loops": _loops, "older": _older}
    return _PART.sub(
        lambda found: f"{found[1]}\n" + "\n".join(parts[found[2]]()) + f"\n\n{found[3]}", page
    )


def _counts() -> list[str]:
    """Say how many findings there are of each kind, and of which releases."""
    newest = [one for one in findings() if one.newest]
    older = [one for one in findings() if not one.newest]
    defects, documented, mistakes = (
        sum(one.kind == kind for one in newest) for kind in ("defect", "documented", "mistake")
    )
    unknown = sum(one.has_report and not one.thread for one in newest)
    libraries = sorted({one.library for one in newest})
    return [
        f"- **{len(newest)} findings** in the newest releases of {len(libraries)} libraries: "
        f"**{defects} defects**, {documented} that are documented, and {mistakes} of programs that "
        "use a library as they should not",
        f"- {unknown} of these defects have no thread upstream that we found",
        f"- {len(older)} findings in releases that are not the newest, "
        f"{sum(one.kind == 'defect' for one in older)} of them defects",
        "",
        "The newest releases are those of November 2026, as the index of Python packages lists "
        f"them for Python 3.11: {', '.join(libraries)}.",
    ]


def _rules() -> list[str]:
    rows = [_row(one) for one in findings() if not one.loops]
    head = ("finding", "library", "of", "smallest case", "what happens", "what is promised", "")
    return _table(head, rows)


def _loops() -> list[str]:
    rows = [_row(one) for one in findings() if one.loops and not one.later]
    head = ("finding", "library", "loop", "smallest case", "what the audit says", "documented", "")
    return _table(head, rows)


def _older() -> list[str]:
    rows = [[*_row(one), one.later] for one in findings() if one.later]
    head = ("finding", "library", "loop", "smallest case", "what the audit says", "documented", "")
    return _table((*head, "later"), rows)


def _row(one: Finding) -> list[str]:
    """Return the cells of a finding; its name leads to its report."""
    report = f"findings/{one.report.name}"
    name = f"[`{one.slug}`]({report})" if one.has_report else f"`{one.slug}`"
    loops = ", ".join(f"`{loop}`" for loop in one.loops)
    rules = re.search(r"--rules (\S+)", one.command)
    about = f"{loops}: {one.subject}" if loops else one.subject
    if rules:
        about = f"rule {rules[1]}: {about}"
    return [name, one.library, about, one.case, one.what, one.promise, _kind(one)]


def _kind(one: Finding) -> str:
    found = _THREAD.search(one.thread)
    return f"{one.kind}; [{found[1]} #{found[2]}]({one.thread})" if found else one.kind


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    there = PAGE.read_text()
    wanted = whole(there)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif there != wanted:
        sys.exit("docs/findings.md is not as the findings are; run python -m suites.findings.page")
