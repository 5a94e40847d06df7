"""The pages of the repository, and the blocks of code in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from disteval.registry import list_all_backends

ROOT = Path(__file__).parents[2]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "examples/README.md", "examples/*/*.md", "findings/R*.md")
    for path in sorted(ROOT.glob(pattern))
    if (ROOT / "noxfile.py").is_file()
]
"""The path of every page in the repository; empty if only the package is installed."""

FINDINGS = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("findings/[!R]*.md"))]
"""The pages about other libraries, whose commands and programs `nox -s findings` runs."""

_FENCE = re.compile(r"^(`{3,})(\w*)")
_FILE = re.compile(r"#\s*([\w./-]+\.\w+)\n")
_ENTRY_POINTS = re.compile(r'\[project\.entry-points\."disteval\.backends"\]\n((?:.+ = .+\n)+)')
_MODEL = re.compile(r"disteval\.models\.resnet18_(\w+)")
_LIBRARIES = {
    "flax", "jax", "mlx", "mpi4py", "paddle", "ray", "tensorflow", "torch", "torchmetrics",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        page: The page's path in the repository.
        line: The line of the page in which its code begins, from 1 up.
        section: The number of headings before it.
        language: The language after the opening fence; empty if there is none.
        code: Its text.
        output: The text block directly after it, or None.
    """

    page: str
    line: int
    section: int
    language: str
    code: str
    output: str | None = None

    @property
    def last(self) -> int:
        """The line of the page that has the closing fence."""
        return self.line + self.code.count("\n")

    @property
    def file(self) -> str:
        """The name of the file that a comment in the first line gives; empty if there is none."""
        found = _FILE.match(self.code)
        return found[1] if found else ""

    def needs(self) -> set[str]:
        """Return the libraries and backends that the Python code imports or names."""
        found = set()
        names = {*list_all_backends(), "ray"}
        for node in ast.walk(ast.parse(self.code)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} & names
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for name in _imported(node):
                    model = _MODEL.match(name)
                    found |= {model[1] if model else name.partition(".")[0]} & _LIBRARIES
                    found |= {"ray"} if name.endswith(".RayLauncher") else set()
        return found


def text_of(page: str) -> str:
    """Return the text of a page, or skip the test if the pages are not there."""
    path = ROOT / page
    if not path.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    return path.read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of code of a page, in order."""
    blocks = list(_blocks(page))
    lines = text_of(page).splitlines()
    for i, (block, after) in enumerate(pairwise(blocks)):
        between = "".join(lines[block.last : after.line - 2])
        if after.language == "text" and not between.strip():
            blocks[i] = replace(block, output=after.code)
    return blocks


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows, and register the entry points of a pyproject.toml."""
    for block in blocks_of(page):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
            if path.name == "pyproject.toml":
                register(block.code, path.parent)


def prose_of(page: str) -> str:
    """Return a page without its blocks of code."""
    lines = text_of(page).splitlines()
    for block in _blocks(page):
        lines[block.line - 2 : block.last] = [""] * (block.last - block.line + 2)
    return "\n".join(lines)


def _blocks(page: str) -> Iterator[Block]:
    section, fence, start, language = 0, "", 0, ""
    lines = text_of(page).splitlines()
    for number, line in enumerate(lines, start=1):
        found = _FENCE.match(line)
        if not fence and found:
            fence, language, start = found[1], found[2], number
        elif fence and line.rstrip() == fence:
            code = "".join(f"{text}\n" for text in lines[start : number - 1])
            yield Block(page, start + 1, section, language, code)
            fence = ""
        elif not fence and line.startswith("#"):
            section += 1
    assert not fence, f"{page}:{start}: this block has no end"


def register(pyproject: str, folder: Path) -> None:
    """Make the entry points of a package known to programs that run in this folder."""
    found = _ENTRY_POINTS.search(pyproject)
    if found is not None:
        info = folder / "shown-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shown\nVersion: 1.0\n")
        declared = found[1].replace('"', "")
        (info / "entry_points.txt").write_text(f"[disteval.backends]\n{declared}")


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names]
