"""Every diff of CONTRIBUTING.md applies to this tree, and what it adds works."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from suites.docs import pages
from suites.processes import run_plainly
from suites.requirements import framework

SECONDS = 180.0
COPIED = ("backends", "docs", "harness", "suites", "tools", "pyproject.toml")
_CHECK = "python -m disteval.cli check --world-size 1,2,3 --examples 3"
_RULES = "[134].*,2.[12],5.[12],6.*,8.1"
_CORRECT = """
from disteval.conformance.runner import check_backend, select_rules
from suites.mutants.correct import CORRECT
for backend in CORRECT:
    assert check_backend(backend, (1, 2, 3), rules=select_rules(["5.4"])).verdict == "conformant"
"""
_MEASURE = """
from suites.benchmarks.asv.frames import FrameCost
cost = FrameCost()
for size in cost.params[0]:
    cost.setup(size)
    cost.time_encode(size)
    cost.time_decode(size)
"""
WORKS = {
    "A backend": (
        f"{_CHECK} --rules {_RULES},7.2 files",
        "python -m pytest suites/unit/cli/test_backends.py -k files",
    ),
    "A rule": (
        # The older rules do not see the new mutant, and the new one sees no correct backend.
        f"{_CHECK} --rules {_RULES} suites.mutants.broken.sequences:EachObjectCounts",
        f"python -c '{_CORRECT}'",
        "python -m pytest suites/mutants suites/docs/test_pages.py "
        "-k 'EachObjectCounts or contract_page'",
    ),
    "A mutant": ("python -m pytest suites/mutants/test_mutants.py -k NoneIsNobody",),
    "A metric": ("python -m pytest suites/unit/metrics/test_absolute_error.py",),
    "A benchmark": (f"python -c '{_MEASURE}'",),
}
"""What has to succeed once the diff under a heading was applied."""

_DIFF = re.compile(r"^### ([^\n]+)\n(?:(?!^#).)*?^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def diffs() -> dict[str, str]:
    """The diffs of the page, by their headings."""
    return dict(_DIFF.findall(pages.text_of("CONTRIBUTING.md")))


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heading: str) -> Path:
    """A copy of this tree with the diff under a heading, as if installed."""
    (tmp_path / "change.diff").write_text(diffs()[heading])
    if shutil.which("git") is None:
        pytest.skip("git, which applies a diff, is not installed")
    tree = tmp_path / "tree"
    tree.mkdir()
    for path in (pages.ROOT / name for name in COPIED):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tree)
    # Where the folder lies in somebody's repository, Git would leave it as it is.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    run("git apply ../change.diff", tree)
    pages.register((tree / "pyproject.toml").read_text(), tree)
    monkeypatch.syspath_prepend(tree)  # ranks import from there, too
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):  # which knows no copy
        monkeypatch.delenv(name, raising=False)
    return tree


def run(command: str, tree: Path) -> None:
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    done = run_plainly(words, tree, SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_diff_of_the_page_is_tried_here() -> None:
    assert list(diffs()) == list(WORKS)
    assert pages.text_of("CONTRIBUTING.md").count("```diff\n") == len(WORKS)


@pytest.mark.parametrize("heading", WORKS)
def test_what_a_diff_adds_works(heading: str, changed: Path) -> None:
    framework("hypothesis")
    for command in WORKS[heading]:
        run(command, changed)


@pytest.mark.parametrize("heading", WORKS)
def test_a_changed_tree_is_in_style(changed: Path) -> None:
    framework("ruff")
    run("python -m ruff check .", changed)
    run("python -m ruff format --check .", changed)
