"""``disteval completion``: a script with which a shell completes ``disteval``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete

from disteval.registry import list_all_backends


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    r"""Print a script that completes this command in a shell.

    It completes the names of commands, options, backends, and tasks in the working directory.

    \b
    source <(disteval completion bash)                     # in ~/.bashrc
    source <(disteval completion zsh)                      # in ~/.zshrc
    disteval completion fish > ~/.config/fish/completions/disteval.fish
    """
    root = click.get_current_context().find_root().command
    # The variable is the one by which a shell asks for completions; click derives it from the name.
    shell_complete(root, {}, "disteval", "_DISTEVAL_COMPLETE", f"{shell}_source")


def complete_backend(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the registered backends that begin with the typed text, without importing them."""
    return [CompletionItem(name) for name in list_all_backends() if name.startswith(typed)]


def complete_task(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the tasks in files of the working directory, without importing these."""
    found = (name for path in sorted(Path.cwd().glob("*.py")) for name in _tasks_in(path))
    return [CompletionItem(name) for name in found if name.startswith(typed)]


def _tasks_in(path: Path) -> Iterator[str]:
    """Yield the functions and values at the top of a file that make a Task, as module:name."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for node in body:
        calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
        if not any("Task" in (getattr(c, "id", ""), getattr(c, "attr", "")) for c in calls):
            continue
        if isinstance(node, ast.FunctionDef):
            yield f"{path.stem}:{node.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield f"{path.stem}:{node.targets[0].id}"
