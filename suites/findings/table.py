"""What a finding is, and the table of all of them, which the modules of `rows` fill.

To add one, append a `Finding` to the list of the module of its library in `rows`, or `of_loop` of
one that `suites.evalbugs` holds; write the report of a defect; and run
``python -m suites.findings.page``.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from suites.evalbugs.table import Entry

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "docs" / "findings"

Kind = Literal["defect", "documented", "mistake"]
"""A defect: the library gives a wrong result, or stops, where its documents promise something else
or nothing. Documented: its documents, its source or a warning say so. A mistake: those who write
such a program should not."""

_KINDS: dict[str, Kind] = {"defect": "defect", "documented": "documented", "user": "mistake"}


@dataclass(frozen=True)
class Finding:
    """A conviction: a release of a library that breaks a rule, or gives a loop a wrong result.

    Attributes:
        slug: Its name, by which it is replayed; docs/findings/<slug>.md reports a defect.
        library: The library with its release: "accelerate 1.15.0".
        environment: A table of environments.toml: what pip installs, pinned.
        command: The command that shows it: arguments of ``disteval``, or ``python`` and its own;
            empty where the program of its report shows it.
        says: Words that the output of the command must contain.
        case: The smallest example.
        what: What happens.
        promise: What the library's own documents promise, with a link; empty where they are silent.
        kind: See `Kind`.
        thread: Where upstream knows of it, as a link; empty if a search found no such place.
        subject: What of the library it is about.
        newest: Whether the release is the newest one of its library.
        loops: The functions of `suites.evalbugs` that show it; the command audits the first.
        later: How a later release does it; empty for findings of the newest.
    """

    slug: str
    library: str
    environment: str
    command: str
    says: str
    case: str
    what: str
    promise: str
    kind: Kind
    thread: str = ""
    subject: str = ""
    newest: bool = True
    loops: tuple[str, ...] = ()
    later: str = ""

    @property
    def report(self) -> Path:
        """Where the report of a defect in the newest release is."""
        return REPORTS / f"{self.slug}.md"

    @property
    def has_report(self) -> bool:
        """Whether its maintainers can be told something: it is a defect that is there today."""
        return self.kind == "defect" and self.newest


@cache
def environments() -> dict[str, dict[str, Any]]:
    """Return the tables of environments.toml by their names."""
    return tomllib.loads(Path(__file__).with_name("environments.toml").read_text())


def of_loop(
    slug: str,
    *loops: str,
    subject: str,
    what: str,
    promise: str = "",
    release: str = "",
    later: str = "",
    newest: bool = True,
) -> Finding:
    """Return the finding of loops of `suites.evalbugs`, whose table has the rest of it.

    Args:
        slug: See `Finding`.
        loops: The functions, as "accelerate_loops:sized_stream"; the first is the example.
        subject: The loop in a few words.
        what: What happens, beyond the kind of the audit's finding.
        promise: See `Finding`; by default the documentation that the table of loops names.
        release: The older release that is meant; empty for the newest.
        later: How a later release does it.
        newest: Whether a release that is installed as the newest is that.
    """
    entry = entries()[loops[0], release]
    version, environment = installed(entry.library, release)
    thread = entry.see if re.search("/(issues|pull)/", entry.see) else ""
    documented = f"[documented]({entry.see})" if entry.see and not thread else ""
    return Finding(
        slug=slug,
        library=f"{entry.library.removesuffix('-lite')} {version}",
        environment=environment,
        command=f"audit suites.evalbugs.{loops[0]} --case {entry.case}",
        says=entry.kind,
        case=entry.case.replace(",", ", ").replace("workers=2", "two workers"),
        what=f"{entry.kind}: {what}",
        promise=promise or documented,
        kind=_KINDS[entry.judged],
        thread=thread,
        subject=subject,
        newest=newest and not release,
        loops=loops,
        later=later,
    )


@cache
def entries() -> dict[tuple[str, str], Entry]:
    """Return the table of `suites.evalbugs` by loop and older release, without running its modules.

    They import torch, which is not needed to say what is known of them.
    """
    found = {}
    for path in sorted((ROOT / "suites" / "evalbugs").glob("*_loops.py")):
        for node in ast.parse(path.read_text()).body:
            for entry in _entries(path.stem, node) if isinstance(node, ast.FunctionDef) else ():
                found[entry.target.removeprefix("suites.evalbugs."), entry.release] = entry
    return found


def _entries(module: str, function: ast.FunctionDef) -> list[Entry]:
    """Return what the decorators of a loop say of it, from the lowest to the highest."""
    target = f"suites.evalbugs.{module}:{function.name}"
    what = " ".join((ast.get_docstring(function, clean=False) or "").split())
    found: list[Entry] = []
    for call in reversed(function.decorator_list):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        given = [ast.literal_eval(one) for one in call.args]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        if call.func.id == "sound":
            found.append(Entry(target, given[0], "sound", "", "", "", what))
        elif call.func.id == "wrong":
            found.append(Entry(target, *[*given, ""][:5], what=what)._replace(**named))
        elif call.func.id == "older":
            release, judged, kind, case, see = given
            found.append(
                found[0]._replace(release=release, judged=judged, kind=kind, case=case, see=see)
            )
    return found


def installed(library: str, release: str = "") -> tuple[str, str]:
    """Return a release of a library that loops are audited with, and the environment that has it.

    Args:
        library: The name of the distribution.
        release: An older release; empty for the newest, which no environment "older-..." has.
    """
    if library == "torch":
        sessions = tomllib.loads((ROOT / "suites" / "sessions.toml").read_text())
        return sessions["versions"]["torch"].partition("==")[2], "newest"
    for environment, table in environments().items():
        if table.get("loops") and (release or not environment.startswith("older")):
            for text in (*table["installs"], *table.get("no_deps", ())):
                name, _, version = text.partition("==")
                if name == library and release in ("", version):
                    return version, environment
    raise LookupError(f"environments.toml installs no {library} {release}")


@cache
def findings() -> tuple[Finding, ...]:
    """Return all findings, in the order of the modules of `rows` and of their lists."""
    from suites.findings import rows

    names = sorted(module.name for module in pkgutil.iter_modules(rows.__path__))
    modules = [importlib.import_module(f"{rows.__name__}.{name}") for name in names]
    return tuple(finding for module in modules for finding in module.FINDINGS)
