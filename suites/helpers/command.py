"""The command line in this process: what a user types, without a process of its own."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from disteval.cli import main
from disteval.cli.terminal import Commands

COMMANDS = main.list_commands(click.Context(main))
"""The names of all sub-commands."""

_OLDER = "mix_stderr" in signature(CliRunner).parameters
APART: dict[str, Any] = {"mix_stderr": False} if _OLDER else {}
"""Keeps standard error apart, as click does from 8.2 on without being asked."""


def invoke(*words: str, group: click.Group = main, **variables: str | None) -> Result:
    """Run ``disteval`` with these words, and with these environment variables beside its own."""
    return CliRunner(env=variables, **APART).invoke(group, words, prog_name="disteval")


def disteval(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``disteval`` in a folder whose modules it finds, and forget these modules afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        _forget(folder)  # another folder's modules of these names
        try:
            done = invoke(*words, **variables)
        finally:
            _forget(folder)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def _forget(folder: Path) -> None:
    names = {path.stem for path in folder.glob("*.py")}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__dict__", {}).get("__file__") or ""
        if name in names or file.startswith(f"{folder}/"):
            del sys.modules[name]


def completions(*words: str) -> list[str]:
    """Return what a shell offers for the last word."""
    *before, begun = words
    offered = ShellComplete(main, {}, "disteval", "_").get_completions(before, begun)
    return [item.value for item in offered]


def parse(*words: str) -> None:
    """Parse words after ``disteval`` without running the command.

    Raises:
        click.UsageError: A sub-command or an option does not exist, or a value is missing or wrong.
    """
    command: click.Command = main
    left = list(words)
    while isinstance(command, click.Group) and left:
        if left[0].startswith("-"):
            _parse(command, [left.pop(0)])
            continue
        name = left.pop(0)
        found = command.get_command(click.Context(main), name)
        if found is None:
            raise click.UsageError(f"there is no sub-command {name}")
        command = found
    _parse(command, left)


def _parse(command: click.Command, words: list[str]) -> None:
    # With the settings of all commands: click keeps the help option that it makes first.
    context = click.Context(command, parent=click.Context(main, **main.context_settings))
    values, rest, given = command.make_parser(context).parse_args(words)
    if rest:
        raise click.UsageError(f"unexpected {rest}")
    for option in given:
        if isinstance(option, click.Option) and not isinstance(option.type, click.Path):
            value, _ = option.consume_value(context, values)
            option.type_cast_value(context, value)
