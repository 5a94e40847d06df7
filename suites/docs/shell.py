"""The command lines of pages, split into words and checked by the parsers of the commands."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suites.docs.pages import ROOT, blocks_of, prose_of, text_of
from suites.helpers.command import parse

LAUNCHERS = {"mpirun": "mpi4py", "torchrun": "torch_cpu", "horovodrun": "tf_horovod"}
"""The backend that is used with each launcher."""

_OURS = ("disteval", "pytest", "nox", "pip", "python")
_OTHERS = (
    "asv", "echo", "git", "jq", "pre-commit", "ray", "salloc", "source", "srun", "ssh-keygen",
)  # fmt: skip
"""Commands of other projects, whose options are not checked."""

_SPAN = re.compile(r"`(disteval [a-z][^`]*)`")


@dataclass(frozen=True)
class Command:
    """A simple command of a page.

    Attributes:
        page: The page's path in the repository.
        line: The page's line.
        launcher: The launcher that starts it on several ranks, with its options; empty for one
            process.
        words: The words of the command itself.
        is_whole: Whether it can be run as it is, without a pipe or a variable.
    """

    page: str
    line: int
    launcher: tuple[str, ...]
    words: tuple[str, ...]
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {shlex.join([*self.launcher, *self.words])}"


def commands_of(page: str) -> list[Command]:
    """Return the commands in the bash blocks of a page, in order."""
    return [
        command
        for block in blocks_of(page)
        if block.language == "bash"
        for number, line in _lines(block.code, block.line)
        for command in _split(page, number, line)
    ]


def mentions_of(page: str) -> list[Command]:
    """Return the ``disteval`` commands in the prose of a page and in blocks that are not run."""
    text = text_of(page)
    found = [
        command
        for span in _SPAN.findall(prose_of(page))
        for command in _split(page, 1 + text[: text.find(span)].count("\n"), span)
    ]
    for block in blocks_of(page):
        if block.language == "text":
            for number, line in _lines(block.code, block.line):
                if re.match(r"(mpirun|torchrun|srun|disteval [a-z-]+)( |$)", line):
                    found += [c for c in _split(page, number, line) if c.words[0] == "disteval"]
    return found


def check(command: Command, folder: Path, pytest_options: set[str]) -> None:
    """Check that the sub-commands, options, files, sessions and extras of a command exist.

    Args:
        command: A command of a page.
        folder: The folder with the files that the page shows.
        pytest_options: The options that pytest accepts.

    Raises:
        AssertionError, click.UsageError: Something that the command names does not exist.
    """
    name, *words = command.words
    assert name in (*_OURS, *_OTHERS), f"{command}: {name} is not a command that pages use"
    if name == "disteval":
        parse(*words)
    elif name == "pytest":
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert options <= pytest_options, f"{command}: {options - pytest_options}"
        _check_files([word for word in words if "/" in word or word.endswith(".py")], folder)
    elif name == "nox":
        sessions = {word.partition("(")[0] for word in _values(words, "-s")}
        assert sessions <= nox_sessions(), f"{command}: {sessions - nox_sessions()}"
    elif name == "pip":
        line = " ".join(words)
        assert "disteval" not in line, f"{command}: the package is on no index; install it from '.'"
        groups = re.findall(r"\.\[(.*?)\]", line)
        extras = {extra for group in groups for extra in group.split(",")}
        known = _extras((ROOT / command.page).parent)
        assert extras <= known, f"{command}: {extras - known}"
    elif name == "python" and words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"{command}: there is no module {words[1]}"
    elif name == "python":
        _check_files([word for word in words if word.endswith(".py")], folder)


def _lines(code: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a backslash at the end joins a line to the next."""
    whole = ""
    for number, line in enumerate(code.splitlines(), start=first):
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield number, whole
            whole = ""


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _split(page: str, number: int, line: str) -> Iterator[Command]:
    """Split a line at its operators; a redirection is followed by a file and not by a command."""
    parts: list[list[str]] = [[]]
    operators = [""]
    for token in _tokens(line):
        if set(token) <= set("();<>|&"):
            parts.append([])
            operators.append(token)
        else:
            parts[-1].append(token)
    is_whole = set(operators) <= {"", "&&"}
    for operator, words in zip(operators, parts, strict=True):
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
            is_whole = False
        if words and operator not in (">", ">>", "<"):
            launcher, own = _without_launcher(words)
            yield Command(page, number, tuple(launcher), tuple(own), is_whole)


def _without_launcher(words: list[str]) -> tuple[list[str], list[str]]:
    """Separate the launcher from the command that the ranks run."""
    if words[0] in (*LAUNCHERS, "srun", "salloc"):
        for i, word in enumerate(words):
            if word in _OURS:
                launcher, words = words[:i], words[i:]
                break
            if word == "-m" or word.endswith(".py"):
                launcher, words = words[:i], ["python", *words[i:]]
                break
        else:
            raise AssertionError(f"no command was found after the launcher in {shlex.join(words)}")
    else:
        launcher = []
    if words[:2] == ["python", "-m"] and words[2] in _OURS:
        return launcher, words[2:]
    return launcher, words


def _values(words: list[str], option: str) -> list[str]:
    """Return the words after an option, up to the next option."""
    if option not in words:
        return []
    after = words[words.index(option) + 1 :]
    end = next((i for i, word in enumerate(after) if word.startswith("-")), len(after))
    return after[:end]


def _check_files(paths: list[str], folder: Path) -> None:
    for path in paths:
        there = any((root / path).exists() for root in (folder, ROOT))
        assert there, f"there is no {path}, neither in the repository nor on the page"


def nox_sessions() -> set[str]:
    """Return the sessions of noxfile.py and of its table, without needing nox."""
    table = (ROOT / "suites/sessions.toml").read_text()
    found = set(re.findall(r'^\[sessions\."?([\w-]+)', table, re.MULTILINE))
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in map(ast.unparse, node.decorator_list):
                if decorator.startswith("nox.session"):
                    named = re.search(r"name='(.*?)'", decorator)
                    found.add(named[1] if named else node.name)
    return found


def _extras(folder: Path) -> set[str]:
    """Return the extras of the nearest pyproject.toml, in this folder or above it."""
    project = next(path for path in (folder, *folder.parents) if (path / "pyproject.toml").exists())
    table = (
        (project / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    )
    return set(re.findall(r"^(\w+) = \[", table.partition("\n[")[0], re.M))
