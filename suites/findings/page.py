"""What a page of findings/ holds: front matter, and programs as blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest and nox bring tomli
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "findings"
KINDS = ("defect", "documented", "mistake")
_PAGE = re.compile(r"\+\+\+\n(.*?)\+\+\+\n# ([^\n]+)\n\n(?!```)(.*)", re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


class Environment(NamedTuple):
    """What pip installs for a finding, beside this package.

    Attributes:
        library: The requirement that pins the library that the finding is about.
        others: More requirements.
        no_deps: Whether the library is installed without what it asks for.
        python: The Python that it needs, where that of the others is too old: "3.12".
    """

    library: str
    others: tuple[str, ...] = ()
    no_deps: bool = False
    python: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A conviction: a release of a library that breaks a rule, or gives a loop a wrong result.

    All but `slug` and `files` to `printed` stand in the front matter, `others` as ``with``.

    Attributes:
        slug: The name of the page, by which the finding is replayed.
        library: The library with the release that the finding was seen in: "accelerate==1.15.0".
        others: What else pip installs.
        no_deps: Whether the library is installed without what it asks for.
        python: The Python that it needs, where that of the others is too old: "3.12".
        kind: One of `KINDS`.
        upstream: The address of the thread about it; empty where we found none.
        right_in: Another release, in which the commands find nothing.
        convicts: Arguments of ``disteval``, of which each command line shows the finding. They run
            in a folder that has ``finding.py``, if the page has it.
        says: Words that each of these commands prints.
        files: The Python blocks, by the name of the file in their first line.
        program: The bash block: it runs one of the files, which does not need this package.
        printed: The text block: lines that the program prints.
    """

    slug: str
    library: str
    kind: str
    others: tuple[str, ...] = ()
    no_deps: bool = False
    python: str = ""
    upstream: str = ""
    right_in: str = ""
    convicts: tuple[str, ...] = ()
    says: str = ""
    files: dict[str, str] = field(default_factory=dict)
    program: str = ""
    printed: str = ""

    @property
    def name(self) -> str:
        """The distribution that the finding is about."""
        return re.split(r"\[|==", self.library)[0]

    @property
    def release(self) -> str:
        """The release that the finding was seen in."""
        return self.library.partition("==")[2]

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Where it is replayed: with the release that is wrong, and with the one that is right."""
        wrong = Environment(self.library, self.others, self.no_deps, self.python)
        right = self.library.replace(f"=={self.release}", f"=={self.right_in}")
        return (wrong, wrong._replace(library=right)) if self.right_in else (wrong,)


def read(path: Path) -> Finding:
    """Return the finding of a page.

    Raises:
        ValueError: The page lacks a part, or has one that no finding has.
    """
    page = _PAGE.fullmatch(path.read_text(encoding="utf-8"))
    if page is None:
        raise ValueError(f"{path.name} is not front matter between +++, a title and a text")
    try:
        front: dict[str, Any] = tomllib.loads(page[1])
        front["others"] = front.pop("with", ())
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in front.items()}
        found = Finding(slug=path.stem, **given, **_blocks(page[3]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if found.kind not in KINDS:
        raise ValueError(f"{path.name} has the kind {found.kind!r} instead of one of {KINDS}")
    if not re.fullmatch(r"[\w-]+(\[\w+\])?==[\w.]+", found.library):
        raise ValueError(f"{path.name} pins no release of a library: {found.library!r}")
    if not (found.convicts or found.program) or bool(found.convicts) != bool(found.says):
        raise ValueError(f"{path.name} needs commands and what they say, or a program")
    return found


def findings() -> tuple[Finding, ...]:
    """Return the findings of all pages, in the order of their names."""
    pages = sorted(FOLDER.glob("*.md"), key=lambda path: path.stem)
    return tuple(read(path) for path in pages if path.name != "README.md")


def _blocks(text: str) -> dict[str, Any]:
    files, others = {}, {}
    for language, code in _BLOCK.findall(text):
        named = _FILE.match(code)
        if language == "python" and named:
            files[named[1]] = code
        elif language in ("bash", "text") and language not in others:
            others[language] = code
        else:
            raise ValueError(f"a block of {language} has no file's name, or is one too many")
    if others.keys() not in (set(), {"bash", "text"}):
        raise ValueError("a program has one block of bash, and one of the text that it prints")
    return {"files": files, "program": others.get("bash", ""), "printed": others.get("text", "")}
