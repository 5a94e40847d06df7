"""``disteval audit`` proves an evaluation loop right, or shows the sample that it got wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from tqdm import tqdm

from disteval.cli.completion import complete_backend
from disteval.cli.options import (
    POSITIVE,
    chosen_interface,
    counts,
    html_option,
    interface_option,
    json_option,
    timeout_option,
    trace_option,
)
from disteval.cli.terminal import (
    is_quiet,
    print_failure,
    print_findings,
    print_verdict,
    write_reports,
)
from disteval.errors import UsageError
from disteval.judging.session import leading
from disteval.registry import add_working_directory
from disteval.text import visible
from disteval.world import World

if TYPE_CHECKING:
    from disteval.audit import LoopFinding, Report

STARTERS = (
    "plain", "accelerate", "lightning", "transformers", "ignite", "torchmetrics", "mmengine",
    "keras", "flax",
)  # fmt: skip
"""The libraries that there is a function to start from for."""


@click.command("audit")
@click.argument("target", required=False)
@click.option(
    "--backend", default="torch_cpu", shell_complete=complete_backend,
    help="The backend whose group the function finds.",
)  # fmt: skip
@click.option(
    "--world-size", callback=counts(), metavar="1,2,3",
    help="The world sizes to try.  [default: 1,2,3, or the world size of mpirun or torchrun]",
)  # fmt: skip
@click.option(
    "--launcher", metavar="NAME",
    help="The launcher of the ranks, such as ray.  [default: the one that the backend names]",
)  # fmt: skip
@interface_option
@click.option("--tokens", is_flag=True, help="Give each sample tokens, whose number varies.")
@click.option("--case", metavar="N=5,B=4,W=2", help="Try this case alone.")
@click.option("--first", is_flag=True, help="Stop at the first case that is wrong.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="The seed of the cases.")
@timeout_option(20.0, "Seconds that one call may take; six times as many for the first one.")
@click.option(
    "--seconds", type=POSITIVE, default=300.0,
    help="Seconds after which no further case is tried.",
)  # fmt: skip
@click.option(
    "--write", "starter", type=click.Choice(STARTERS),
    help="Print a function to start from, and audit nothing.",
)  # fmt: skip
@trace_option
@json_option
@html_option()
def audit_command(
    target: str | None,
    backend: str,
    world_size: tuple[int, ...] | None,
    launcher: str | None,
    tokens: bool,
    case: str | None,
    first: bool,
    seed: int,
    timeout: float,
    seconds: float,
    starter: str | None,
    trace: Path | None,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    r"""Audit the evaluation function TARGET, a module:function in the working directory.

    The function is called on every rank with a case: samples whose true result is known, in small
    and uneven numbers. It returns what it computed, by name. The audit compares that with the
    truth, and with one rank, and names the first sample that was counted twice, dropped or
    weighted wrongly. The exit status is 0 if the function is sound, 1 if it is wrong, and 2 if it
    could not be judged.

    \b
    disteval audit --write accelerate > my_eval.py
    disteval audit my_eval:evaluate
    disteval audit my_eval:evaluate --case N=5,B=4,W=2
    mpirun -np 3 disteval audit my_eval:evaluate --backend mpi4py
    """
    if starter is not None:
        source = (
            resources.files("disteval.cli").joinpath("audit_starters").joinpath(f"{starter}.py")
        )
        click.echo(source.read_text(encoding="utf-8"), nl=False)
        return
    if target is None:
        raise UsageError("no function is named; name one as module:function, or give --write")
    from disteval.audit.cases import parse
    from disteval.audit.runner import DEFAULT_WORLD_SIZES, Audit

    add_working_directory()
    only = None if case is None else parse(case)
    if only and world_size and only.world_size not in world_size:
        raise UsageError(
            f"--case has the world size {only.world_size}, and --world-size has "
            f"{', '.join(map(str, world_size))}; leave --world-size out"
        )
    if only:
        only = replace(only, tokens=only.tokens or tokens, seed=only.seed or seed)
    begun = leading(
        (only.world_size,) if only else world_size, DEFAULT_WORLD_SIZES,
        partial(print_failure, "audit"), world=World, interface=chosen_interface(), trace=trace,
    )  # fmt: skip
    # A bar is for terminals (disable=None), not for log files.
    with begun as led, tqdm(unit="step", disable=True if is_quiet() else None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        if reason := led.why_not(backend):
            raise UsageError(reason)
        report = Audit(
            target, led.sizes, backend, launcher, tokens, seed, timeout, seconds,
            only=only, first=first, led=led.world, trace=led.trace, started_by=led.started_by,
            on_finding=_announcer(), on_step=show,
        ).run()  # fmt: skip
        bar.close()
        written = write_reports("audit", report, json_path, html_path)
        _show(Console(), report)
        sys.exit(report.exit_code or (0 if written else 2))


def _announcer() -> Callable[[LoopFinding], None]:
    def announce(finding: LoopFinding) -> None:
        with tqdm.external_write_mode(file=sys.stderr):  # above the bar
            click.echo(visible(f"found: {finding}"), err=True)

    return (lambda _: None) if is_quiet() else announce


def _show(console: Console, report: Report) -> None:
    write = partial(console.print, soft_wrap=True, highlight=False)
    print_findings(console, report.findings)
    for warning in report.warnings:
        write(f"\nnote: {escape(warning)}")
    if report.reason:
        write(f"\n{escape(visible(report.reason))}")
        if report.details:
            write("  " + escape(visible(report.details).replace("\n", "\n  ")))
    print_verdict(console, report.target, report.judged)
