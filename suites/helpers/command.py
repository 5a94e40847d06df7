"""The command line in this process: what a user types, without a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from disteval.cli import main

COMMANDS = [*main.commands]
"""The names of all sub-commands."""

PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def invoke(*words: str, **variables: str | None) -> Result:
    """Run ``disteval`` with these words, and with these environment variables beside its own."""
    return CliRunner(env=PLAIN | variables).invoke(main, words, prog_name="disteval")


def disteval(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``disteval`` in a folder whose modules it finds, and forget these modules afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        try:
            done = invoke(*words, **variables)
        finally:
            for name in [path.stem for path in folder.glob("*.py")]:
                sys.modules.pop(name, None)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
