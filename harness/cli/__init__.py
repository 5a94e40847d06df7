"""The ``disteval`` command; one module a sub-command."""

from __future__ import annotations

import click

from harness.cli.backends import backends_command
from harness.cli.check import check_command
from harness.cli.eval import eval_command
from harness.cli.report import report_command


@click.group()
@click.version_option(package_name="disteval-harness", prog_name="disteval")
def main() -> None:
    """Prove distributed evaluation right."""


main.add_command(eval_command)
main.add_command(check_command)
main.add_command(backends_command)
main.add_command(report_command)
