"""What a finding is, and all of them: ``findings.toml``, and the loops of `suites.evalbugs`.

To add one, add its table to ``findings.toml``, its row to docs/findings.md, and the report of a
defect to docs/findings/, under its name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


class Entry(NamedTuple):
    """One loop of `suites.evalbugs`, with one release of its library.

    Attributes:
        loop: The function, after the name of the package: "accelerate_loops:sized_stream".
        library: The distribution that the loop is about.
        kind: The kind of the first finding; an empty text for a sound loop.
        case: The smallest case that is wrong.
        release: The older release that is judged; an empty text stands for the newest.
    """

    loop: str
    library: str
    kind: str = ""
    case: str = ""
    release: str = ""


@dataclass(frozen=True)
class Finding:
    """A conviction: a release of a library that breaks a rule, or gives a loop a wrong result.

    Attributes:
        slug: Its name, by which it is replayed.
        library: The library with its release: "accelerate 1.15.0".
        environment: A table of environments.toml: what pip installs, pinned.
        command: The command that shows it: arguments of ``disteval``, or ``python`` and its own;
            empty where the program of its report shows it.
        says: Words that the output of the command must contain.
        loops: The functions of `suites.evalbugs` that show it; the command audits the first.
    """

    slug: str
    library: str
    environment: str
    command: str = ""
    says: str = ""
    loops: tuple[str, ...] = ()

    @property
    def report(self) -> Path:
        """Where its report is, if it is a defect that its maintainers can be told of."""
        return ROOT / "docs" / "findings" / f"{self.slug}.md"


@cache
def environments() -> dict[str, dict[str, Any]]:
    """Return the tables of environments.toml by their names."""
    return _read("environments.toml")


@cache
def entries() -> dict[tuple[str, str], Entry]:
    """Return the loops of `suites.evalbugs` by name and older release, without running its modules.

    They import torch, which is not needed to say what is known of them.
    """
    found = {}
    for path in sorted((ROOT / "suites" / "evalbugs").glob("*_loops.py")):
        for node in ast.parse(path.read_text()).body:
            for entry in _entries(path.stem, node):
                found[entry.loop, entry.release] = entry
    return found


def _entries(module: str, function: ast.stmt) -> list[Entry]:
    """Return what the decorators of a loop say of it, from the lowest to the highest."""
    found: list[Entry] = []
    match function:
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name("sound_where"), [_, library, _])):
            return [Entry(f"{module}:{name}", ast.literal_eval(library))]
    if not isinstance(function, ast.FunctionDef):
        return found
    for call in reversed(function.decorator_list):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        given = [ast.literal_eval(one) for one in call.args]
        if call.func.id in ("sound", "wrong"):
            found.append(Entry(f"{module}:{function.name}", *given))
        elif call.func.id == "older":
            release, *judged = given
            found.append(Entry(*found[0][:2], *judged, release))
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
    """Return all findings, in the order of findings.toml."""
    found = []
    for slug, row in _read("findings.toml").items():
        if loops := row.get("loops"):
            entry = entries()[loops[0], row.get("release", "")]
            version, environment = installed(entry.library, entry.release)
            row = {
                "library": f"{entry.library.removesuffix('-lite')} {version}",
                "environment": environment,
                "command": f"audit suites.evalbugs.{entry.loop} --case {entry.case}",
                "says": entry.kind,
                "loops": tuple(loops),
            }
        found.append(Finding(slug, **row))
    return tuple(found)


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text())
