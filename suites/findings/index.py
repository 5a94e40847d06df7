"""Write the list of findings/README.md from the pages: ``python -m suites.findings.index``."""

from __future__ import annotations

import re
from collections import Counter

from suites.findings.page import FOLDER, Finding, findings

README = FOLDER / "README.md"
_LIST = re.compile(r"(<!-- written by suites/findings/index.py -->\n).*", re.DOTALL)
_THREAD = re.compile(r"https://github.com/[\w.-]+/([\w.-]+)/(?:issues|pull)/(\d+)")


def with_list(page: str) -> str:
    """Return the text of the index with the list of all findings at its end."""
    every = findings()
    kinds = Counter(one.kind for one in every)
    unknown = sum(one.kind == "defect" and not one.upstream for one in every)
    libraries = len({one.name for one in every})
    counted = (
        f"{len(every)} findings in {libraries} libraries: {kinds['defect']} defects, of which "
        f"{unknown} have no thread that we found,\n{kinds['documented']} that are documented, and "
        f"{kinds['mistake']} mistakes.\n"
    )
    lines = "".join(f"{_line(one)}\n" for one in every)
    return _LIST.sub(lambda head: f"{head[1]}\n{counted}\n{lines}", page)


def _line(one: Finding) -> str:
    """Return the line of a finding: name, library with release, kind, thread, right release."""
    facts = [f"{one.name} {one.release}", one.kind]
    if one.upstream:
        facts.append(_THREAD.sub(r"\1 #\2", one.upstream))
    if one.right_in:
        facts.append(f"right in {one.right_in}")
    return f"- [{one.slug}]({one.slug}.md): {', '.join(facts)}"


if __name__ == "__main__":
    README.write_text(with_list(README.read_text(encoding="utf-8")), encoding="utf-8")
