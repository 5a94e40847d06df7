"""Every Python block of every page runs, and prints what the page says.

The blocks of a page are one program: they run in order, in one namespace. A section that needs what
not every session installs is left out elsewhere, and every section runs in some nox session. A
block whose first line is a comment with a file name is not run but written to that file.
"""

import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from suites.docs.pages import PAGES, Block, blocks_of, write_files
from suites.helpers.needs import MARKER_OF, OPTIONAL, needs
from suites.helpers.processes import run_plainly

SECONDS = 180.0
FEW = "__import__('suites.helpers.pictures').helpers.pictures.embed_few()"
_END = "\x1e"


@dataclass(frozen=True)
class Program:
    """The blocks of a page that can run with some libraries and backends, in order."""

    page: str
    needs: frozenset[str]
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return f"{self.page}-{'-'.join(sorted(self.needs)) or 'core'}"

    def script(self) -> str:
        """Return the blocks, each on its lines of the page, so that tracebacks name these lines."""
        code = "".join(block.code for block in self.blocks)
        # With all 10,000 pictures, a network takes minutes on a busy machine.
        lines = [FEW] if "load_embedded()" in code and "default_weights()" in code else []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.code.splitlines()
            lines.append(f"print({_END!r}, end='', flush=True)")  # ends the block's output
        return "\n".join(lines) + "\n"


def programs_of(page: str) -> list[Program]:
    """Return one program for each set of markers that a section gets by what it needs."""
    python = [b for b in blocks_of(page) if b.language == "python" and not b.file]
    needs, markers = {}, {}
    for section, blocks in groupby(python, lambda block: block.section):
        needs[section] = OPTIONAL & set.union(*(block.needs() for block in blocks))
        markers[section] = frozenset(MARKER_OF[name] for name in needs[section])
    programs = []
    for there in sorted(set(markers.values()), key=sorted):
        own = tuple(b for b in python if markers[b.section] <= there)
        needed = frozenset[str]().union(*(needs[block.section] for block in own))
        programs.append(Program(page, needed, own))
    return programs


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=needs(*program.needs), id=str(program))
        for page in PAGES
        for program in programs_of(page)
    ],
)
def test_the_blocks_of_a_page_run_and_print_what_it_says(program: Program, tmp_path: Path) -> None:
    write_files(program.page, tmp_path)
    script = tmp_path / "page.py"
    script.write_text(program.script())
    done = run_plainly([sys.executable, str(script)], tmp_path, SECONDS)
    assert done.returncode == 0, done.stderr
    *printed, rest = done.stdout.split(_END)
    assert len(printed) == len(program.blocks) and not rest
    for block, output in zip(program.blocks, printed, strict=True):
        if block.output is not None:
            assert output == block.output, f"{block.page}:{block.line} prints something else"
