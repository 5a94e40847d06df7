"""Measure the audit itself: ``python -m suites.audit.quality`` prints the table of docs/audit.md.

It audits every loop of this folder whose library is installed, the wrong ones and the right ones,
in all cases. Of a wrong loop it reads whether the audit convicts it, whether the first finding is
its mistake, and what the findings name; of a right one whether the audit calls it wrong.
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

from disteval.audit import Audit
from disteval.errors import LibraryMissingError
from disteval.registry import get_backend_class

from suites.audit import wrong  # noqa: F401  whose loops are in the table
from suites.audit.parts import LIBRARIES, WRONG
from suites.audit.right import RIGHT

COLUMNS = (
    "mistake", "convicted", "first finding is it", "others of another kind",
    "names a sample", "a rank", "a line of code", "first finding after, median s", "at most s",
)  # fmt: skip

SAMPLE = re.compile(r"samples? (\d|'|id)|\d+ samples|ids? ")
RANK = re.compile(r"ranks? \d|every rank|the ranks|jobs? \d")
LINE = re.compile(r"line \d+|\.py:\d+")


@dataclass
class Tried:
    """What the audit says of one loop, and after how many seconds it found the first mistake."""

    name: str
    kind: str
    kinds: list[str]
    texts: list[str]
    verdict: str
    first: float


def loops() -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    """Return each loop's name, what is audited, its kind of mistake, and how it is audited."""
    threads: dict[str, Any] = {"backend": "threads"}
    for name, (loop, kind, case) in WRONG.items():
        yield name, loop, kind, threads | {"tokens": "tokens" in case}
    for loop in RIGHT:
        yield loop.__name__, loop, "", threads
    for module, backend in LIBRARIES.items():
        with suppress(LibraryMissingError):
            get_backend_class(backend)
            found = import_module(f"suites.audit.{module}")
            for name, (kind, case) in found.WRONG.items():
                how = {"backend": backend, "tokens": "tokens" in case}
                yield name, f"{found.__name__}:{name}", kind, how
            for name in found.RIGHT:
                yield name, f"{found.__name__}:{name}", "", {"backend": backend}


def tried(name: str, loop: Any, kind: str, how: dict[str, Any]) -> Tried:
    """Audit a loop in all cases."""
    begin, seconds = time.monotonic(), list[float]()
    patient = {"seconds": 1200.0} | ({"timeout": 5.0} if kind in ("hangs", "crashes") else {})
    report = Audit(
        loop, **how, **patient, on_finding=lambda _: seconds.append(time.monotonic() - begin)
    ).run()
    findings = report.to_json()["findings"]
    texts = [" ".join([f["sentence"], f["message"], *map(str, f["evidence"])]) for f in findings]
    kinds = [f["kind"] for f in findings]
    return Tried(name, kind, kinds, texts, report.verdict, (seconds or [0.0])[0])


def row(kind: str, those: list[Tried]) -> str:
    """Return the table's row of the loops with one kind of mistake."""
    convicted = [one for one in those if one.verdict == "wrong"]
    caused = sum(one.kinds[0] == one.kind for one in convicted)
    others = sum(found != one.kind for one in convicted for found in one.kinds)
    named = [sum(bool(p.search(one.texts[0])) for one in convicted) for p in (SAMPLE, RANK, LINE)]
    seconds = [one.first for one in convicted] or [0.0]
    cells = (
        kind, f"{len(convicted)} of {len(those)}", caused, others, *named,
        f"{median(seconds):.1f}", f"{max(seconds):.1f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Print the table, and return 1 if a wrong loop is not convicted or a right one is."""
    by_kind: dict[str, list[Tried]] = defaultdict(list)
    for name, loop, kind, how in loops():
        one = tried(name, loop, kind, how)
        by_kind[kind].append(one)
        print(f"{name}: {one.verdict}: {one.kinds}", file=sys.stderr, flush=True)
    right = by_kind.pop("")
    print(f"| {' | '.join(COLUMNS)} |", f"|---{'|--:' * (len(COLUMNS) - 1)}|", sep="\n")
    for kind, those in sorted(by_kind.items(), key=lambda each: -len(each[1])):
        print(row(kind, those))
    every = [one for those in by_kind.values() for one in those]
    print(row("all", every))
    accused = [one.name for one in right if one.verdict != "sound"]
    print(f"{len(right) - len(accused)} of {len(right)} right loops are sound", *accused)
    return int(bool(accused) or any(one.verdict != "wrong" for one in every))


if __name__ == "__main__":
    sys.exit(main())
