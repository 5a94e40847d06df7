"""The ``disteval`` command; each sub-command is one module, which is imported when it is called."""

from __future__ import annotations

import click

from disteval.cli.terminal import Commands

_NAMES = (
    "audit", "backends", "check", "compare", "doctor", "eval", "fit", "new", "report", "trace",
    "verify",
)  # fmt: skip


@click.group(
    cls=Commands,
    names=_NAMES,
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
    disteval verify results                       say which samples a harness's number is about
    disteval compare base/ new/                   say whether one model is better than another
    disteval doctor                               show what works on this machine
    disteval backends                             list the backends, and what they can't do
    disteval report run.json --html page.html     write one page of several reports
    disteval trace run                            show where the time went in a trace

    \b
    Exit status:
      0    the command succeeded, and every rule that was checked holds
      1    the command failed, or the verdict is "broken"
      2    wrong usage, something needed is not installed, there is no verdict, or a result could
           not be written
      130  interrupted by Ctrl-C

    Every command takes --quiet and --verbose, also after its name. NO_COLOR=1 removes colours.
    """
