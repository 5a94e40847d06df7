"""Write the commands and options of ``disteval`` into docs/command_line.md.

``--check`` writes nothing, and exits with 1 where the page is not what would be written.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import click
from disteval.cli import main
from page import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "command_line.md"
BEGIN, END = "<!-- written by tools/write_command_line.py -->", "<!-- end -->"
SHARED = ("quiet", "verbose")


def describe(name: str, command: click.Command) -> str:
    """Return the section of a command: its description and a table of its options."""
    told = inspect.cleandoc(command.help or "").partition("\b\n")[0]
    paragraphs = [textwrap.fill(part, 110) for part in told.strip().split("\n\n")]
    with click.Context(command, info_name=name, show_default=True) as context:
        rows = [
            f"| {_spelled(parameter)} | {_meaning(parameter, context)} |"
            for parameter in command.params
            if isinstance(parameter, click.Option) and parameter.name not in SHARED
        ]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    parts = [f"## disteval {name}", *paragraphs, "\n".join(table)]
    return "\n\n".join(filter(None, parts))


def _spelled(option: click.Option) -> str:
    value = ""
    if not option.is_flag:
        choices = getattr(option.type, "choices", None)
        value = (
            "|".join(map(str, choices))
            if choices
            else option.metavar or option.type.name.split()[0]
        )
    names = ", ".join([*option.opts, *option.secondary_opts])
    return _cell(f"`{names} {value}".strip() + "`")


def _meaning(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    return _cell(record[1]) if record else ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def whole(page: str) -> str:
    """Return the page with new sections."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    sections = [describe(name, command) for name, command in commands.items() if command]
    return "\n\n".join([before.rstrip(), BEGIN, *sections, END + after.rstrip()]) + "\n"


if __name__ == "__main__":
    write_or_check(PAGE, whole, "options")
