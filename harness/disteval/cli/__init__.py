"""The ``disteval`` command; each sub-command is one module."""

from __future__ import annotations

import click

from disteval.cli.audit import audit_command
from disteval.cli.backends import backends_command
from disteval.cli.calls import calls_command
from disteval.cli.check import check_command
from disteval.cli.completion import completion_command
from disteval.cli.doctor import doctor_command
from disteval.cli.eval import eval_command
from disteval.cli.fit import fit_command
from disteval.cli.new import new_command
from disteval.cli.report import report_command
from disteval.cli.terminal import Commands
from disteval.cli.trace import trace_command


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(package_name="disteval-harness", prog_name="disteval")
def main() -> None:
    r"""Prove distributed evaluation right.

    \b
    disteval new                                  write a task of your own to start from
    disteval eval my_task:task --world-size 3     evaluate it on three ranks, each sample once
    disteval eval --world-size 3                  evaluate ResNet-18 on CIFAR-10
    disteval fit --world-size 2                   train on two ranks, and validate exactly
    disteval check torch_cpu                      check a backend against the contract
    disteval audit my_eval:evaluate               check an evaluation loop of your own
    disteval doctor                               what works on this machine

    \b
    Exit status:
      0    the command succeeded, and every rule that was checked holds
      1    the command failed, or the verdict is "broken"
      2    wrong usage, something needed is not installed, there is no verdict, or a result could
           not be written
      130  interrupted by Ctrl-C

    Every command takes --quiet and --verbose, also after its name. NO_COLOR=1 removes colours.
    """


main.add_command(eval_command)
main.add_command(new_command)
main.add_command(fit_command)
main.add_command(check_command)
main.add_command(audit_command)
main.add_command(backends_command)
main.add_command(report_command)
main.add_command(trace_command)
main.add_command(calls_command)
main.add_command(doctor_command)
main.add_command(completion_command)
