"""The pages of findings/ can be replayed, as far as that shows without the libraries."""

import ast
import importlib.util
import shlex
from pathlib import Path

import pytest

from suites.docs.pages import FINDINGS, ROOT, text_of
from suites.findings.index import README, with_list
from suites.findings.page import read
from suites.findings.replay import lines_missing
from suites.helpers.command import parse


@pytest.mark.parametrize("page", FINDINGS)
def test_a_page_has_front_matter_commands_and_programs_that_can_run(page: str) -> None:
    finding = read(ROOT / page)
    for name, code in finding.files.items():
        ast.parse(code, name)
    for command in finding.convicts:
        program, target, *_ = words = shlex.split(command)
        parse(*words)
        module, _, name = target.partition(":")
        assert program in ("audit", "check")
        if name:
            there = importlib.util.find_spec(module) if module != "finding" else None
            code = Path(str(there.origin)).read_text() if there else finding.files["finding.py"]
            assert name in {getattr(node, "name", "") for node in ast.parse(code).body}


@pytest.mark.parametrize("page", FINDINGS)
def test_a_program_is_short_and_does_without_this_package(page: str) -> None:
    finding = read(ROOT / page)
    programs = {name: code for name, code in finding.files.items() if name != "finding.py"}
    assert len(programs) == bool(finding.program)
    for name, code in programs.items():
        assert code.count("\n") < 20, f"the program of {page} is too long"
        assert "disteval" not in code and "suites" not in code
        assert name in finding.program
        assert "timeout" in finding.program + code, f"the program of {page} may hang"


def test_the_index_has_each_finding_in_a_short_line() -> None:
    page = text_of("findings/README.md")
    assert page == with_list(page), f"run python -m suites.findings.index, which writes {README}"
    assert max(map(len, page.splitlines())) <= 160


def test_what_a_page_shows_may_be_among_other_lines_and_vary_where_it_says_so() -> None:
    output = "a warning\nrank 1: 0.25rank 0: killed after 3.1 s\n\n"
    assert lines_missing("rank 0: killed after ... s\nrank 1: 0.25\n", output) == []
    wrong = ["rank 0: killed before ... s", "rank 1: 0.2", "rank 1: 0"]
    assert lines_missing("\n".join(wrong), output) == wrong
