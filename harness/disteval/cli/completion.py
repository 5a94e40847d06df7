"""``disteval completion``: a script with which a shell completes ``disteval``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, shell_complete

from disteval.registry import list_all_backends


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    r"""Print a script that completes this command in a shell.

    It completes the names of commands, options and backends.

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
